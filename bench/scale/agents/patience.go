package main

import (
	"errors"
	"math"
	"os"
)

const mostPatience = 8.0

// Patience is how many times longer than usual to wait for an answer: twice as long after each one
// that came too late.
type Patience struct{ doublings float64 }

func (p *Patience) factor() float64 { return math.Pow(2, p.doublings) }

func (p *Patience) note(late bool) {
	p.doublings = math.Min(p.doublings+1, math.Log2(mostPatience))
	if !late {
		p.doublings = 0
	}
}

func isLate(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }
