//go:build race

package fuse_test

// raceEnabled says that memory use is not what it is otherwise.
const raceEnabled = true
