// The first process of every pod on the node of the end-to-end tests: it holds the pod's namespaces, reaps what is orphaned in them, and ends when told.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGCHLD)
	for received := range signals {
		if received != syscall.SIGCHLD {
			os.Exit(0)
		}
		for {
			if ended, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); ended <= 0 || err != nil {
				break
			}
		}
	}
}
