package instance

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/holdfast-db/holdfast/internal/cluster"
)

// The durable configuration denies; what permits is a file on tmpfs that it
// includes last. postgresql.conf is the user's (or initdb's) but for its last line.
const (
	durableName = "holdfast.conf"
	permitName  = "permit.conf"
	includeLine = "include = '" + durableName + "'"
)

// managed is one setting that is ours.
type managed struct {
	name, value  string
	since, until int // majors that know it; 0: unbounded
}

// durable returns the settings that hold on disk, whoever starts Postgres.
func durable(ssn string, slotCap int64) []managed {
	return []managed{
		{name: ssnSetting, value: ssn},
		{name: "synchronous_commit", value: "on"},
		{name: "primary_conninfo"}, {name: "primary_slot_name"}, {name: "restore_command"}, {name: "archive_cleanup_command"},
		{name: "recovery_end_command"}, {name: "recovery_target"}, {name: "recovery_target_lsn"}, {name: "recovery_target_name"},
		{name: "recovery_target_time"}, {name: "recovery_target_xid"},
		{name: "recovery_target_timeline", value: "latest"},
		{name: "restart_after_crash", value: "off"},
		{name: "hot_standby", value: "on"},
		{name: "wal_log_hints", value: "on"},
		{name: "fsync", value: "on"}, {name: "full_page_writes", value: "on"},
		{name: "max_slot_wal_keep_size", value: strconv.FormatInt(slotCap>>20, 10) + "MB"},
		{name: "idle_replication_slot_timeout", value: "0", since: 18},
		{name: "wal_retrieve_retry_interval", value: "100ms"},
		{name: "wal_receiver_timeout", value: "2s"},
		{name: "wal_receiver_status_interval", value: "1s"},
		{name: "wal_sender_timeout", value: "5s"},
		{name: "max_standby_streaming_delay", value: "200ms"},
		{name: "max_standby_archive_delay", value: "200ms"},
		{name: "superuser_reserved_connections", value: strconv.Itoa(reserved)},
		{name: "lc_messages", value: "C"},
		{name: "password_encryption", value: "scram-sha-256"},
		{name: "update_process_title", value: "on"},
		{name: "log_destination", value: "stderr"},
		{name: "logging_collector", value: "off"},
		{name: "archive_mode", value: "off"},
		{name: "listen_addresses"}, // our own starts say where
	}
}

// reserved connections are the agent's: it looks, probes and closes the door
// when everybody else's are in use.
const reserved = 8

// raised are settings of which the user may have more than we need, not less.
var raised = map[string]int{"max_wal_senders": 16, "max_replication_slots": 16}

// defaultSlotCap is what a slot may hold back if nobody says otherwise.
const defaultSlotCap = 16 << 30

func (m managed) known(major int) bool {
	return (m.since == 0 || major >= m.since) && (m.until == 0 || major <= m.until)
}

// quoted is a value as a configuration file has it.
func quoted(s string) string {
	return "'" + strings.ReplaceAll(strings.ReplaceAll(s, `\`, `\\`), "'", "''") + "'"
}

// durableText is holdfast.conf: the user's settings, then ours, then the permit.
func (i *Instance) durableText(ssn cluster.SSN) string {
	var b strings.Builder
	b.WriteString("# Written by holdfast: changes here are lost. Your own settings belong into postgresql.conf or the node's file.\n")
	for _, name := range slices.Sorted(maps.Keys(i.cfg.Settings)) {
		fmt.Fprintf(&b, "%s = %s\n", name, quoted(i.cfg.Settings[name]))
	}
	wal := "replica"
	if i.cfg.Settings["wal_level"] == "logical" {
		wal = "logical"
	}
	fmt.Fprintf(&b, "wal_level = %s\n", wal)
	for _, name := range slices.Sorted(maps.Keys(raised)) {
		n, _ := strconv.Atoi(i.cfg.Settings[name])
		fmt.Fprintf(&b, "%s = %d\n", name, max(n, raised[name]))
	}
	slotCap := i.cfg.SlotCap
	if slotCap <= 0 {
		slotCap = defaultSlotCap
	}
	for _, m := range durable(ssnText(i.cfg.Cluster, ssn), slotCap) {
		if m.known(i.major) {
			fmt.Fprintf(&b, "%s = %s\n", m.name, quoted(m.value))
		}
	}
	fmt.Fprintf(&b, "include_if_exists = %s\n", quoted(filepath.Join(i.cfg.RunDir, permitName)))
	return b.String()
}

// nobody is the SSN of the durable configuration.
var nobody = cluster.SSN{K: 1}

// writeConfig makes the directory's configuration deny, and ours. Every part is
// written only if it is not as it should be: it runs before each start.
func (i *Instance) writeConfig(ssn cluster.SSN) error {
	if err := i.writeIfOther(filepath.Join(i.cfg.DataDir, durableName), i.durableText(ssn)); err != nil {
		return err
	}
	if err := i.writeIfOther(filepath.Join(i.cfg.DataDir, "pg_hba.conf"), hbaText(doorClosed, nil, true)); err != nil {
		return err
	}
	if err := i.writeIfOther(filepath.Join(i.cfg.DataDir, "pg_ident.conf"), i.identText()); err != nil {
		return err
	}
	if err := i.includeLast(); err != nil {
		return err
	}
	return i.scrub()
}

func (i *Instance) writeIfOther(path, text string) error {
	have, err := os.ReadFile(path)
	if err == nil && string(have) == text {
		return nil
	}
	return i.writeDurable(path, []byte(text))
}

// includeLast has postgresql.conf end in our include, so that nothing in it
// comes after what denies.
func (i *Instance) includeLast() error {
	path := filepath.Join(i.cfg.DataDir, "postgresql.conf")
	have, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	text := withIncludeLast(string(have))
	if err == nil && text == string(have) {
		return nil
	}
	return i.writeDurable(path, []byte(text))
}

// withIncludeLast is conf with our include as its last line that says anything.
func withIncludeLast(conf string) string {
	var lines []string
	for line := range strings.Lines(conf) {
		if strings.TrimSpace(line) != includeLine {
			lines = append(lines, strings.TrimSuffix(line, "\n"))
		}
	}
	text := strings.TrimRight(strings.Join(lines, "\n"), "\n \t")
	if text != "" {
		text += "\n"
	}
	return text + includeLine + "\n"
}

// scrub takes what is ours out of postgresql.auto.conf, which outranks every file.
func (i *Instance) scrub() error {
	path := filepath.Join(i.cfg.DataDir, "postgresql.auto.conf")
	have, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	text, gone := scrubbed(string(have), i.ours())
	if len(gone) == 0 {
		return nil
	}
	i.log.Warn("settings that the cluster manages were taken out of postgresql.auto.conf", "settings", strings.Join(gone, ", "))
	return i.writeDurable(path, []byte(text))
}

// ours are the names that no file but ours may set.
func (i *Instance) ours() map[string]bool {
	out := map[string]bool{"wal_level": i.cfg.Settings["wal_level"] != "logical"}
	for _, m := range durable("", 0) {
		out[m.name] = true
	}
	for name := range onCommandLine {
		out[name] = true
	}
	return out
}

// scrubbed is conf without the settings in ours.
func scrubbed(conf string, ours map[string]bool) (text string, gone []string) {
	var b strings.Builder
	for line := range strings.Lines(conf) {
		name := settingName(line)
		if ours[name] {
			gone = append(gone, name)
			continue
		}
		b.WriteString(line)
	}
	return b.String(), gone
}

// settingName is what a line of a configuration file sets, in small letters.
func settingName(line string) string {
	line = strings.TrimSpace(line)
	if at := strings.IndexAny(line, "= \t#"); at >= 0 {
		line = line[:at]
	}
	return strings.ToLower(line)
}

// permit is what RunDir grants beyond the durable configuration. Absent, it
// grants nothing.
type permit struct {
	HasSSN          bool
	SSN             string // synchronous_standby_names
	PrimaryConninfo string // of the one upstream; empty: none
	PrimarySlot     string
	RestoreCommand  string
}

const ssnSetting = "synchronous_standby_names"

func (p permit) text() string {
	var b strings.Builder
	b.WriteString("# Written by holdfast after a read of the register.\n")
	if p.HasSSN {
		fmt.Fprintf(&b, "%s = %s\n", ssnSetting, quoted(p.SSN))
	}
	for _, kv := range [][2]string{{"primary_conninfo", p.PrimaryConninfo}, {"primary_slot_name", p.PrimarySlot}, {"restore_command", p.RestoreCommand}} {
		if kv[1] != "" {
			fmt.Fprintf(&b, "%s = %s\n", kv[0], quoted(kv[1]))
		}
	}
	return b.String()
}

// parsePermit reads what text wrote; anything else grants nothing.
func parsePermit(text string) permit {
	var p permit
	for line := range strings.Lines(text) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), " = ")
		value, ok2 := unquoted(value)
		if !ok || !ok2 {
			continue
		}
		switch name {
		case ssnSetting:
			p.HasSSN, p.SSN = true, value
		case "primary_conninfo":
			p.PrimaryConninfo = value
		case "primary_slot_name":
			p.PrimarySlot = value
		case "restore_command":
			p.RestoreCommand = value
		}
	}
	return p
}

func unquoted(s string) (string, bool) {
	if len(s) < 2 || s[0] != '\'' || s[len(s)-1] != '\'' {
		return "", false
	}
	return strings.ReplaceAll(strings.ReplaceAll(s[1:len(s)-1], "''", "'"), `\\`, `\`), true
}

// editPermit changes the permit; it is in force after a reload or start.
func (i *Instance) editPermit(change func(*permit)) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	next := i.permit
	change(&next)
	if err := i.writeVolatile(filepath.Join(i.cfg.RunDir, permitName), []byte(next.text())); err != nil {
		return err
	}
	i.permit = next
	return nil
}

// ssnPermitted is what synchronous_standby_names should be in force now.
func (i *Instance) ssnPermitted() string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.ssnWanted()
}

// ssnWanted is ssnPermitted with mu held.
func (i *Instance) ssnWanted() string {
	if i.permit.HasSSN {
		return i.permit.SSN
	}
	return ssnText(i.cfg.Cluster, i.durSSN)
}
