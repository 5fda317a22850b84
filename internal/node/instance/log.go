package instance

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"strings"
	"sync"
)

// The server's log is a file that the server itself holds open for appending, so
// that it outlives the agent. It is copied and emptied when it has grown.

const maxLog = 64 << 20

// rotateLog keeps one older log beside the one in use.
func (i *Instance) rotateLog() error {
	info, err := os.Stat(i.logPath())
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() < maxLog {
		return nil
	}
	if err != nil {
		return err
	}
	in, err := os.Open(i.logPath())
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(i.logPath()+".1", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	if err = errors.Join(err, out.Close()); err != nil {
		return err
	}
	return os.Truncate(i.logPath(), 0) // it is appended to: the next line stands at its beginning
}

// logTail reads what the server adds to its log.
type logTail struct {
	mu   sync.Mutex
	path string
	at   int64
	rest string // a line that is not whole yet
}

// lines returns what was added since the last call, whole lines only.
func (t *logTail) lines() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	f, err := os.Open(t.path)
	if err != nil {
		return nil
	}
	defer f.Close()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil || size == t.at {
		return nil
	}
	if size < t.at {
		t.at, t.rest = 0, "" // it was rotated
	}
	const most = 1 << 20 // of a log that grows faster, the older lines are passed over
	if size-t.at > most {
		t.at, t.rest = size-most, ""
	}
	data, err := io.ReadAll(io.NewSectionReader(f, t.at, size-t.at))
	if err != nil {
		return nil
	}
	t.at += int64(len(data))
	parts := strings.Split(t.rest+string(data), "\n")
	t.rest = parts[len(parts)-1]
	return parts[:len(parts)-1]
}

// waitCancelled says whether a line of the log tells of a commit that was
// reported as done without its confirmation. A wait that ends with its session, as
// when the door closes, reports nothing to anybody.
func waitCancelled(line string) bool {
	return strings.Contains(line, "WARNING:  canceling wait for synchronous replication")
}
