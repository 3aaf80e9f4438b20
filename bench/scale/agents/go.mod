module regroup.dev/bench/scale/agents

go 1.24
