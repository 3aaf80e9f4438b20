package main

import (
	"syscall"
	"time"
	"unsafe"
)

const clockMonotonic = 1

// monotonic returns seconds of the clock that Python's time.monotonic shows.
func monotonic() float64 {
	var now syscall.Timespec
	syscall.Syscall(syscall.SYS_CLOCK_GETTIME, clockMonotonic, uintptr(unsafe.Pointer(&now)), 0)
	return float64(now.Nano()) / 1e9
}

func seconds(number float64) time.Duration {
	return time.Duration(number * float64(time.Second))
}
