package report_test

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// browser is a headless Chromium, spoken to over a pair of pipes: one JSON
// message each way, ended by a zero byte (its --remote-debugging-pipe).
type browser struct {
	t       *testing.T
	in      io.WriteCloser
	replies chan reply
	nextID  int
	session string
	events  []reply // those that came between replies
}

type reply struct {
	ID     int             `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  *struct {
		Message string `json:"message"`
	} `json:"error"`
}

// startBrowser skips the test where there is no Chromium. It ends with the test.
func startBrowser(t *testing.T) *browser {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("chromium is missing, so the page is not tried in a browser: apt-get install chromium")
	}
	toUs, theirs, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	theirIn, toThem, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
		"--hide-scrollbars", "--disable-default-apps", "--disable-extensions", "--remote-debugging-pipe", "--user-data-dir="+t.TempDir(), "about:blank")
	cmd.ExtraFiles = []*os.File{theirIn, theirs} // its descriptors 3 and 4
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", path, err)
	}
	b := &browser{t: t, in: toThem, replies: make(chan reply, 1000)}
	t.Cleanup(func() {
		b.stop(cmd)
		if err := errors.Join(ignoreClosed(toThem.Close()), toUs.Close()); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("chromium said: %s", stderr.String())
		}
	})
	if err := errors.Join(theirIn.Close(), theirs.Close()); err != nil {
		t.Fatal(err)
	}
	go readReplies(toUs, b.replies)
	return b
}

func ignoreClosed(err error) error {
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}

// stop asks the browser to close, so that its children go with it.
func (b *browser) stop(cmd *exec.Cmd) {
	b.nextID++
	_, _ = fmt.Fprintf(b.in, `{"id":%d,"method":"Browser.close"}`+"\x00", b.nextID) // it may be gone already
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = cmd.Wait() // how it ended is of no matter
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		b.t.Error("chromium did not close when asked to")
		_ = cmd.Process.Kill() // nothing else is left to do
		<-done
	}
}

func readReplies(r io.Reader, out chan<- reply) {
	defer close(out)
	in := bufio.NewReaderSize(r, 1<<20)
	for {
		msg, err := in.ReadBytes(0)
		if err != nil {
			return
		}
		var rep reply
		if json.Unmarshal(msg[:len(msg)-1], &rep) == nil {
			out <- rep
		}
	}
}

// call sends one command and returns its result.
func (b *browser) call(method string, params any) json.RawMessage {
	b.t.Helper()
	b.nextID++
	id := b.nextID
	msg := map[string]any{"id": id, "method": method}
	if params != nil {
		msg["params"] = params
	}
	if b.session != "" {
		msg["sessionId"] = b.session
	}
	data, err := json.Marshal(msg)
	if err != nil {
		b.t.Fatal(err)
	}
	if _, err := b.in.Write(append(data, 0)); err != nil {
		b.t.Fatalf("send %s to chromium: %v", method, err)
	}
	rep := b.next(func(r reply) bool { return r.ID == id })
	if rep.Error != nil {
		b.t.Fatalf("%s: %s", method, rep.Error.Message)
	}
	return rep.Result
}

// next waits for a message that fits and keeps the others.
func (b *browser) next(fits func(reply) bool) reply {
	b.t.Helper()
	deadline := time.After(30 * time.Second)
	for {
		select {
		case r, ok := <-b.replies:
			if !ok {
				b.t.Fatal("chromium closed its pipe")
			}
			if r.Method != "" {
				b.events = append(b.events, r)
			}
			if fits(r) {
				return r
			}
		case <-deadline:
			b.t.Fatal("chromium did not answer within 30 s")
		}
	}
}

// open loads a file in a new page with scripts off and returns when it is loaded.
// The page is width pixels wide and prefers the scheme ("light" or "dark").
func (b *browser) open(file string, width int, scheme string) {
	b.t.Helper()
	b.session, b.events = "", nil
	var target struct{ TargetID string }
	unmarshal(b.t, b.call("Target.createTarget", map[string]any{"url": "about:blank"}), &target)
	var attached struct{ SessionID string }
	unmarshal(b.t, b.call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}), &attached)
	b.session = attached.SessionID
	for _, domain := range []string{"Page", "Network", "Log", "Runtime", "Security"} {
		b.call(domain+".enable", nil)
	}
	b.call("Emulation.setScriptExecutionDisabled", map[string]any{"value": true})
	b.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600})
	b.call("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}}})
	b.call("Page.navigate", map[string]any{"url": "file://" + file})
	b.next(func(r reply) bool { return r.Method == "Page.loadEventFired" })
}

// eval runs an expression from outside the page: its own scripts are off.
func (b *browser) eval(expression string, into any) {
	b.t.Helper()
	var out struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails json.RawMessage
	}
	unmarshal(b.t, b.call("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true}), &out)
	if out.ExceptionDetails != nil {
		b.t.Fatalf("%s: %s", expression, out.ExceptionDetails)
	}
	unmarshal(b.t, out.Result.Value, into)
}

// screenshots writes the whole page as PNGs of a screen each: base-00.png, ...
func (b *browser) screenshots(base string, width int) {
	b.t.Helper()
	var height int
	b.eval(`document.documentElement.scrollHeight`, &height)
	const slice = 1500
	for i := 0; i*slice < height; i++ {
		var shot struct{ Data string }
		unmarshal(b.t, b.call("Page.captureScreenshot", map[string]any{"captureBeyondViewport": true, "clip": map[string]any{
			"x": 0, "y": i * slice, "width": width, "height": min(slice, height-i*slice), "scale": 1}}), &shot)
		data, err := base64.StdEncoding.DecodeString(shot.Data)
		if err != nil {
			b.t.Fatal(err)
		}
		if err := os.WriteFile(fmt.Sprintf("%s-%02d.png", base, i), data, 0o600); err != nil {
			b.t.Fatal(err)
		}
	}
}

func unmarshal(t *testing.T, data json.RawMessage, into any) {
	t.Helper()
	if err := json.Unmarshal(data, into); err != nil {
		t.Fatalf("%v in %s", err, data)
	}
}

// writePage puts a page where a browser can open it.
func writePage(t *testing.T, html string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "report.html")
	if err := os.WriteFile(file, []byte(html), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}
