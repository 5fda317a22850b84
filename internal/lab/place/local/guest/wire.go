// Package guest is what runs inside a local host: its first process, which
// furnishes the host's namespaces and starts programs on the lab's behalf, and
// the words that it and the lab exchange.
//
// The lab holds one end of a socket pair, the control socket. Its first
// message is a Config; each later message carries one descriptor, a stream on
// which one Request is answered. When the control socket is closed the lab is
// gone, and the first process ends, and every program of the host with it.
package guest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// Where things are, as programs on the host see them. All of it is in memory
// and private to the host but for what is on the disk.
const (
	root    = "/run/holdfast"
	RunDir  = root + "/run"
	diskDir = root + "/disk"
	DataDir = diskDir + "/data"
	binDir  = root + "/bin"
	etcDir  = root + "/etc"

	// Program is this very program, readable by every user of the host.
	Program = binDir + "/holdfast"
	// DataName is DataDir's name within the disk.
	DataName = "data"
	// User is the unprivileged user. It exists only within hosts.
	User = "holdfast-lab"
)

// ControlFD is the control socket's number in the first process.
const ControlFD = 3

// FSType is the type of a simulated disk's mount, as mountinfo shows it.
const FSType = "fuse.holdfast"

// Config furnishes a host.
type Config struct {
	Name   string `json:"name"`
	ID     int    `json:"id"`     // uid and gid of the unprivileged user
	Hosts  string `json:"hosts"`  // contents of /etc/hosts
	Disk   string `json:"disk"`   // the disk's mount point outside the host, "" without one
	Binary string `json:"binary"` // path of this program outside the host
}

// Ready answers a Config.
type Ready struct {
	Error string `json:"error,omitempty"`
}

// Request asks for one program. Its standard streams come with the first byte
// as three descriptors.
type Request struct {
	Path string   `json:"path"`
	Args []string `json:"args,omitempty"`
	Env  []string `json:"env,omitempty"`
	Dir  string   `json:"dir"`
	Root bool     `json:"root,omitempty"`
}

// Started answers a Request. Without an error it comes with the program's
// pidfd, and an Ended follows it on the same stream. When the stream is closed
// before, the lab has given up, and the program is killed.
type Started struct {
	Error string `json:"error,omitempty"`
	Errno int    `json:"errno,omitempty"`
}

// Ended says how the program ended: a wait status.
type Ended struct {
	Status uint32 `json:"status"`
}

// Kill may follow a Request on its stream: the program's process group, which
// it leads, is killed.
type Kill struct{}

const maxFDs = 4

// Send writes v as one line, with fds on its first byte.
func Send(c *net.UnixConn, v any, fds ...int) error {
	line, err := json.Marshal(v)
	if err != nil {
		return err
	}
	line = append(line, '\n')
	n := 0
	if len(fds) > 0 {
		if n, _, err = c.WriteMsgUnix(line, unix.UnixRights(fds...), nil); err != nil {
			return err
		}
	}
	for n < len(line) {
		m, err := c.Write(line[n:])
		if err != nil {
			return err
		}
		n += m
	}
	return nil
}

// Receive reads one line into v and returns the descriptors that came with it.
// The rest of the stream is read through the returned reader.
func Receive(c *net.UnixConn, v any) (fds []int, rest io.Reader, err error) {
	buf := make([]byte, 32<<10)
	n, fds, err := ReceiveFDs(c, buf)
	if err != nil {
		return nil, nil, err
	}
	line := bytes.Clone(buf[:n])
	for !bytes.ContainsRune(line, '\n') {
		n, err := c.Read(buf)
		if err != nil {
			CloseAll(fds)
			return nil, nil, err
		}
		line = append(line, buf[:n]...)
	}
	head, tail, _ := bytes.Cut(line, []byte{'\n'})
	if err := json.Unmarshal(head, v); err != nil {
		CloseAll(fds)
		return nil, nil, fmt.Errorf("message on a host's socket: %w", err)
	}
	return fds, io.MultiReader(bytes.NewReader(tail), c), nil
}

// ReceiveFDs reads once and returns the descriptors that came along, all
// close-on-exec. At the end of the stream the error is io.EOF.
func ReceiveFDs(c *net.UnixConn, buf []byte) (int, []int, error) {
	oob := make([]byte, unix.CmsgSpace(4*maxFDs))
	n, oobn, _, _, err := c.ReadMsgUnix(buf, oob)
	if err != nil {
		return 0, nil, err
	}
	var fds []int
	msgs, err := unix.ParseSocketControlMessage(oob[:oobn])
	for _, m := range msgs {
		if got, err := unix.ParseUnixRights(&m); err == nil {
			fds = append(fds, got...)
		}
	}
	if err == nil && n == 0 && len(fds) == 0 {
		err = io.EOF
	}
	return n, fds, err
}

// CloseAll closes raw descriptors.
func CloseAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}

// Conn makes a connection of a raw socket descriptor and takes it over.
func Conn(fd int) (*net.UnixConn, error) {
	f := os.NewFile(uintptr(fd), "socket")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	uc, ok := c.(*net.UnixConn)
	if !ok {
		_ = c.Close()
		return nil, fmt.Errorf("a %T where a unix socket was expected", c)
	}
	return uc, nil
}

// Pair makes two connected unix sockets: a connection for this process and a
// file to hand to another one.
func Pair(sotype int) (*net.UnixConn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, sotype|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	theirs := os.NewFile(uintptr(fds[1]), "socket")
	ours, err := Conn(fds[0])
	if err != nil {
		_ = theirs.Close()
		return nil, nil, err
	}
	return ours, theirs, nil
}
