package driver

import (
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgproto3"
)

// fake speaks the server's side of the wire protocol as a script says.
type fake struct {
	ln       net.Listener
	standby  atomic.Bool
	readOnly atomic.Bool
	silent   atomic.Bool // accepts connections and says nothing
	startup  atomic.Pointer[pgproto3.ErrorResponse]
	conns    atomic.Int64 // accepted so far
	open     atomic.Int64 // open now
	most     atomic.Int64 // open at once
	odd      atomic.Bool  // something other than a startup came, a cancel request say
	startups sync.Map     // parameters of the last startup
	// insert answers one INSERT; false closes the connection.
	insert func(b *pgproto3.Backend, bind *pgproto3.Bind) bool
	wg     sync.WaitGroup
	quit   chan struct{}
	mu     sync.Mutex
	live   map[net.Conn]bool
}

func newFake(t testing.TB, insert func(*pgproto3.Backend, *pgproto3.Bind) bool) *fake {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &fake{ln: ln, insert: insert, quit: make(chan struct{}), live: map[net.Conn]bool{}}
	if insert == nil {
		f.insert = ack
	}
	f.wg.Go(f.accept)
	t.Cleanup(f.stop)
	return f
}

func (f *fake) target() string { return f.ln.Addr().String() }

func (f *fake) stop() {
	select {
	case <-f.quit:
		return
	default:
	}
	close(f.quit)
	_ = f.ln.Close()
	f.mu.Lock()
	for c := range f.live {
		_ = c.Close()
	}
	f.mu.Unlock()
	f.wg.Wait()
}

func (f *fake) accept() {
	for {
		c, err := f.ln.Accept()
		if err != nil {
			return
		}
		f.conns.Add(1)
		if n := f.open.Add(1); n > f.most.Load() {
			f.most.Store(n)
		}
		f.mu.Lock()
		f.live[c] = true
		f.mu.Unlock()
		f.wg.Go(func() {
			defer func() {
				_ = c.Close()
				f.open.Add(-1)
				f.mu.Lock()
				delete(f.live, c)
				f.mu.Unlock()
			}()
			f.serve(c)
		})
	}
}

func ready() *pgproto3.ReadyForQuery { return &pgproto3.ReadyForQuery{TxStatus: 'I'} }

func (f *fake) serve(c net.Conn) {
	b := pgproto3.NewBackend(c, c)
	if f.silent.Load() {
		_, _ = b.ReceiveStartupMessage()
		_, _ = b.Receive() // until the other end gives up
		return
	}
	m, err := b.ReceiveStartupMessage()
	if err != nil {
		return
	}
	sm, ok := m.(*pgproto3.StartupMessage)
	if !ok {
		f.odd.Store(true)
		return
	}
	for k, v := range sm.Parameters {
		f.startups.Store(k, v)
	}
	if e := f.startup.Load(); e != nil {
		b.Send(e)
		_ = b.Flush()
		return
	}
	b.Send(&pgproto3.AuthenticationOk{})
	b.Send(&pgproto3.BackendKeyData{ProcessID: 1, SecretKey: []byte{0, 0, 0, 1}})
	b.Send(ready())
	for b.Flush() == nil {
		m, err := b.Receive()
		if err != nil {
			return
		}
		switch m := m.(type) {
		case *pgproto3.Query:
			f.recovery(b)
		case *pgproto3.Parse:
			b.Send(&pgproto3.ParseComplete{})
		case *pgproto3.Describe:
			b.Send(&pgproto3.ParameterDescription{ParameterOIDs: []uint32{20, 23, 20, 17}})
			b.Send(&pgproto3.NoData{})
		case *pgproto3.Sync:
			b.Send(ready())
		case *pgproto3.Bind:
			bind := *m
			for { // Execute and Sync
				if m, err := b.Receive(); err != nil {
					return
				} else if _, ok := m.(*pgproto3.Sync); ok {
					break
				}
			}
			if !f.insert(b, &bind) {
				_ = b.Flush()
				return
			}
		case *pgproto3.Terminate:
			return
		}
	}
}

func (f *fake) recovery(b *pgproto3.Backend) {
	word := func(v bool) []byte {
		if v {
			return []byte("t")
		}
		return []byte("f")
	}
	b.Send(&pgproto3.RowDescription{Fields: []pgproto3.FieldDescription{
		{Name: []byte("r"), DataTypeOID: 16, DataTypeSize: 1}, {Name: []byte("o"), DataTypeOID: 16, DataTypeSize: 1},
	}})
	b.Send(&pgproto3.DataRow{Values: [][]byte{word(f.standby.Load()), word(f.readOnly.Load())}})
	b.Send(&pgproto3.CommandComplete{CommandTag: []byte("SELECT 1")})
	b.Send(ready())
}

// ack is the answer to an INSERT that worked.
func ack(b *pgproto3.Backend, _ *pgproto3.Bind) bool {
	b.Send(&pgproto3.BindComplete{})
	b.Send(&pgproto3.CommandComplete{CommandTag: []byte("INSERT 0 1")})
	b.Send(ready())
	return true
}
