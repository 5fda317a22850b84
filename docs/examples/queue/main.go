// A queue that keeps each message in a file of its own, and says "accepted" when
// a message is safe. Or so it thinks: without -dirsync it flushes the file, but
// not the directory that holds the file's name.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	dirsync := flag.Bool("dirsync", false, "flush the directory too")
	flag.Parse()
	for _, message := range flag.Args()[1:] {
		if err := accept(flag.Arg(0), message, *dirsync); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println("accepted", message)
	}
}

// accept puts a message into the queue's directory.
func accept(dir, message string, dirsync bool) error {
	f, err := os.Create(filepath.Join(dir, message))
	if err != nil {
		return err
	}
	_, err = f.WriteString(message)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil || !dirsync {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
