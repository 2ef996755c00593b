// Counters by key, kept in memory by the key's owner and stored in PostgreSQL before they are answered.
package main

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"counters/bundles"
)

const (
	leaveLimit  = 60 * time.Second
	linger      = 500 * time.Millisecond // for clients that still come after we have left
	headerLimit = 5 * time.Second
)

func main() {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	listen := cmp.Or(os.Getenv("LISTEN"), "127.0.0.1:9000")
	if err := run(listen, os.Getenv("ADVERTISED_URL"), os.Getenv("COUNTERS_STORE"), log); err != nil {
		log.Error("ended", "error", err)
		os.Exit(1)
	}
}

// run serves until SIGTERM or SIGINT, then moves all bundles away.
func run(listen, url, store string, log *slog.Logger) error {
	asked, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	ledger, err := openLedger(asked, store)
	if err != nil {
		return err
	}
	defer ledger.pool.Close()
	listener, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	url = cmp.Or(url, "http://"+listener.Addr().String())
	counters := newCounters(ledger)
	member, err := bundles.New(counters, map[string]string{"http": url}, log)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: (&web{counters, member, log}).routes(), ReadHeaderTimeout: headerLimit}
	failed := make(chan error, 2)
	go func() { failed <- server.Serve(listener) }()
	go func() { failed <- member.Run() }()
	log.Info("serving", "url", url)
	select {
	case err := <-failed:
		return err
	case <-asked.Done():
		stop() // a second signal ends the process at once
		return leave(member, server, log)
	}
}

func leave(member *bundles.Member, server *http.Server, log *slog.Logger) error {
	ctx, cancel := context.WithTimeout(context.Background(), leaveLimit)
	defer cancel()
	log.Info("leaving")
	err := member.Leave(ctx)
	time.Sleep(linger)
	log.Info("left")
	return errors.Join(err, server.Shutdown(ctx))
}
