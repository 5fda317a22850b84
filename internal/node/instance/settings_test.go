package instance

import (
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-db/holdfast/internal/cluster"
)

func TestCheckSettings(t *testing.T) {
	good := map[string]string{"shared_buffers": "1GB", "work_mem": "64MB", "wal_level": "logical", "max_connections": "200", "max_wal_senders": "20",
		"data_sync_retry": "off", "auto_explain.log_min_duration": "1s"}
	if p := CheckSettings(good); len(p) > 0 {
		t.Errorf("refused: %v", p)
	}
	for name, value := range map[string]string{"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off", "synchronous_standby_names": "*",
		"archive_command": "true", "archive_mode": "on", "restore_command": "cp", "port": "1", "listen_addresses": "*", "hba_file": "x", "ssl": "off",
		"ssl_key_file": "x", "primary_conninfo": "x", "restart_after_crash": "on", "data_directory": "/", "wal_level": "minimal", "max_connections": "20",
		"max_wal_senders": "2", "max_replication_slots": "many", "data_sync_retry": "on", "zero_damaged_pages": "on", "FSYNC": "off", "a b": "1",
		"work_mem": "1\nfsync = off", "max_standby_streaming_delay": "-1", "superuser_reserved_connections": "0"} {
		p := CheckSettings(map[string]string{name: value})
		if len(p) != 1 || p[0].Why == "" || p[0].Fix == "" {
			t.Errorf("%s = %q: %v", name, value, p)
		}
	}
	// Whatever we manage is refused, with a reason.
	var ours []string
	for _, m := range durable("", 0) {
		ours = append(ours, m.name)
	}
	for name := range onCommandLine {
		ours = append(ours, name)
	}
	for _, name := range ours {
		if _, ok := managedWhy(name); !ok {
			t.Errorf("%s is managed and would be accepted", name)
		}
	}
}

func TestCheckHBA(t *testing.T) {
	good := []string{"", "# a comment", "host app app 10.0.0.0/8 scram-sha-256", "local all all peer", `hostssl "replication" app all scram-sha-256`}
	if p := CheckHBA(good); len(p) > 0 {
		t.Errorf("refused: %v", p)
	}
	for _, rule := range []string{"host replication all all trust", "host app,replication all all trust", "include other.conf", "nonsense a b c", "host all",
		"host all all all trust\nhost replication all all trust"} {
		if p := CheckHBA([]string{rule}); len(p) != 1 || p[0].Fix == "" {
			t.Errorf("%q: %v", rule, p)
		}
	}
}

func TestCheckVersion(t *testing.T) {
	for _, v := range [][2]int{{13, 21}, {14, 18}, {15, 13}, {15, 18}, {16, 9}, {17, 5}, {18, 0}} {
		if err := CheckVersion(v[0], v[1]); err != nil {
			t.Error(err)
		}
	}
	for _, v := range [][2]int{{12, 22}, {13, 20}, {14, 17}, {15, 12}, {16, 8}, {17, 4}, {19, 0}} {
		if err := CheckVersion(v[0], v[1]); err == nil || !strings.Contains(err.Error(), "PostgreSQL") {
			t.Errorf("%v: %v", v, err)
		}
	}
}

func TestConf(t *testing.T) {
	for _, c := range [][2]string{
		{"", includeLine + "\n"},
		{"work_mem = '1MB'\n", "work_mem = '1MB'\n" + includeLine + "\n"},
		{"a = 1\n" + includeLine + "\nfsync = off\n\n", "a = 1\nfsync = off\n" + includeLine + "\n"},
		{"a = 1 # no newline", "a = 1 # no newline\n" + includeLine + "\n"},
	} {
		if got := withIncludeLast(c[0]); got != c[1] {
			t.Errorf("%q became %q, want %q", c[0], got, c[1])
		}
		if got := withIncludeLast(c[1]); got != c[1] {
			t.Errorf("%q became %q the second time", c[1], got)
		}
	}
	text, gone := scrubbed("# kept\nwork_mem = '1MB'\nSynchronous_Standby_Names = ''\nfsync='off'\n", map[string]bool{ssnSetting: true, "fsync": true})
	if text != "# kept\nwork_mem = '1MB'\n" || !slices.Equal(gone, []string{ssnSetting, "fsync"}) {
		t.Errorf("scrubbed to %q, without %v", text, gone)
	}
	p := permit{HasSSN: true, SSN: `ANY 1 ("a_b_1")`, PrimaryConninfo: `host=10.0.0.1 passfile='/x y' a=\\`, PrimarySlot: "b_1", RestoreCommand: `/bin/x "%f" '%p'`}
	if got := parsePermit(p.text()); got != p {
		t.Errorf("the permit %+v was read as %+v", p, got)
	}
	if got := parsePermit("nonsense\n= \nprimary_conninfo = x\n"); got != (permit{}) {
		t.Errorf("nonsense permits %+v", got)
	}
}

func TestProcessTitles(t *testing.T) {
	for title, want := range map[string]string{
		"postgres: app shop 10.0.0.1(4711) idle":                                "app",
		"postgres: app shop [local] idle in transaction":                        "app",
		"postgres: app shop fe80::1(4711) SELECT":                               "app",
		"postgres: main: app shop [local] idle":                                 "app",
		"postgres: startup shop [local] idle":                                   "startup",
		"postgres: walsender holdfast_replication 10.0.0.2(9) streaming 0/3000": roleReplication,
		"postgres: walsender app shop 10.0.0.2(9) START_REPLICATION":            "app",
		"postgres: holdfast postgres [local] idle":                              roleAgent,
		"postgres: checkpointer ":                                               "",
		"postgres: main: walwriter ":                                            "",
		"postgres: startup recovering 000000010000000000000001":                 "",
		"postgres: autovacuum launcher ":                                        "",
		"postgres: walreceiver streaming 0/3000148":                             "",
		"/usr/lib/postgresql/15/bin/postgres -D /data -c port=5432":             "",
	} {
		p := process{title: title}
		if user, _ := p.clientUser(); user != want {
			t.Errorf("%q serves %q, want %q", title, user, want)
		}
		if want := want == "app" || want == "startup"; p.client() != want {
			t.Errorf("%q: client %v", title, p.client())
		}
	}
	for _, bad := range []string{"", "1 (x", "1 (postgres) Z 1 2", "1 (a b) c) S"} {
		if _, _, ok := parseStat(1, bad); ok {
			t.Errorf("%q is read as a process", bad)
		}
	}
}

func TestRecordEnd(t *testing.T) {
	const seg = 16 << 20
	for _, c := range []struct {
		at   uint64
		size int
		want uint64
	}{
		{0x1000028, 114, 0x10000A0},
		{0x1001F88, 114, 0x1002000},
		{0x1001F90, 114, 0x1002018 + 8},
		{0x1FFFFF0, 114, 0x2000028 + 104},
		{0x1000028, 8192 * 2, 0x1000028 + 8192*2 + 2*shortHead},
	} {
		if got := recordEnd(cluster.LSN(c.at), c.size, seg); got != cluster.LSN(c.want) {
			t.Errorf("a record of %d bytes at %X ends at %X, want %X", c.size, c.at, got, c.want)
		}
	}
	if n, err := recordSize("rmgr: XLOG        len (rec/tot):    114/   114, tx:          0, lsn: 0/01000028, prev 0/0, desc: CHECKPOINT_SHUTDOWN redo"); err != nil || n != 114 {
		t.Errorf("%d, %v", n, err)
	}
	for _, bad := range []string{"", "rmgr: XLOG len (rec/tot): 114/ 114, desc: CHECKPOINT_ONLINE", "len (rec/tot): x/y, CHECKPOINT_SHUTDOWN"} {
		if _, err := recordSize(bad); err == nil {
			t.Errorf("%q is taken for a shutdown checkpoint", bad)
		}
	}
}

func TestSenderProof(t *testing.T) {
	p := newSenderProof()
	if !p.take(nil) {
		t.Error("without senders, all are proved")
	}
	p = newSenderProof()
	row := func(pid int32, priority int32, wait string, sent int64) senderRow {
		return senderRow{pid, priority, wait, sent}
	}
	if p.take([]senderRow{row(1, 1, "", 10), row(2, 0, "", 10), row(3, 1, "WalSenderMain", 10)}) {
		t.Error("a busy sender of SSN is taken for proved")
	}
	if p.take([]senderRow{row(1, 1, "", 20), row(4, 1, "", 1)}) {
		t.Error("one move may be of the round that began before the signal")
	}
	if !p.take([]senderRow{row(1, 1, "", 30), row(4, 1, "", 1)}) {
		t.Error("two moves are a whole round, and a new sender read the new settings")
	}
	p = newSenderProof()
	p.take([]senderRow{row(1, 1, "", 10)})
	if !p.take(nil) {
		t.Error("a sender that is gone releases nobody")
	}
}
