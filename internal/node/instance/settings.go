package instance

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/holdfast-db/holdfast/internal/postgres"
)

// Problem is one setting, or one rule, that is refused.
type Problem struct{ Name, Why, Fix string }

func (p Problem) String() string { return p.Name + ": " + p.Why + ". " + p.Fix }

const leaveOut = "Leave it out"

// managedWhy says of settings that are ours what they are for.
func managedWhy(name string) (Problem, bool) {
	p := Problem{Name: name, Fix: leaveOut}
	switch name {
	case "fsync", "full_page_writes":
		p.Why = "without it a power cut damages the data directory"
		p.Fix = "Leave it out: it is on"
	case "synchronous_standby_names":
		p.Why = "it decides which standbys confirm a commit, and the cluster keeps it in step with the register"
		p.Fix = "Leave it out; say how many must confirm with the cluster's k"
	case "synchronous_commit":
		p.Why = "for everybody it would make every acknowledged commit one that may be lost"
		p.Fix = "Leave it out; lower it with SET in the sessions that can lose their last commits"
	case "primary_conninfo", "primary_slot_name", "recovery_target_timeline", "hot_standby", "wal_receiver_timeout", "wal_receiver_status_interval",
		"wal_retrieve_retry_interval", "wal_sender_timeout", "wal_log_hints", "recovery_target", "recovery_target_lsn", "recovery_target_name", "recovery_target_time",
		"recovery_target_xid", "recovery_end_command", "archive_cleanup_command":
		p.Why = "the cluster sets up replication and recovery itself"
	case "restore_command", "archive_mode", "archive_command", "archive_library":
		p.Why = "the cluster decides which WAL is kept and which is replayed: a segment of an abandoned timeline must not come back"
	case "restart_after_crash":
		p.Why = "a Postgres that restarts itself shows rows that were never acknowledged; the agent restarts it behind a closed door"
	case "max_standby_streaming_delay", "max_standby_archive_delay":
		p.Why = "a query on a standby would hold up its promotion"
	case "max_slot_wal_keep_size", "idle_replication_slot_timeout":
		p.Why = "it bounds what a lost standby may hold back, and slots of members must not expire by the clock"
		p.Fix = "Leave it out; set the node's slot cap instead"
	case "superuser_reserved_connections":
		p.Why = "the agent needs connections when everybody else's are in use"
	case "lc_messages", "log_destination", "logging_collector", "update_process_title":
		p.Why = "the agent reads the server's messages, where and as it set them up"
		p.Fix = "Leave it out; the log is postgres.log in the node's state directory"
	case "listen_addresses", "port", "unix_socket_directories", "unix_socket_permissions":
		p.Why = "the other nodes have to find this Postgres"
		p.Fix = "Leave it out; set the node's address and port"
	case "hba_file", "ident_file":
		p.Why = "the door to clients is opened and closed by these files"
		p.Fix = "Leave it out; give your rules as the node's hba"
	case "ssl", "ssl_ca_file", "ssl_cert_file", "ssl_key_file":
		p.Why = "replication is let in by certificates of this node's own"
	case "password_encryption":
		p.Why = "passwords are kept as scram-sha-256"
	case "data_directory", "config_file", "external_pid_file":
		p.Why = "the node has one data directory"
		p.Fix = "Leave it out; set the node's postgres.data"
	default:
		return Problem{}, false
	}
	return p, true
}

// CheckSettings returns what is wrong with the user's own settings, sorted by
// name. They are to be refused before anything is touched.
func CheckSettings(settings map[string]string) []Problem {
	var out []Problem
	for _, given := range slices.Sorted(maps.Keys(settings)) {
		name, value := strings.ToLower(strings.TrimSpace(given)), settings[given]
		p, bad := managedWhy(name)
		switch {
		case bad:
		case name != given || !settingForm(name):
			p, bad = Problem{Name: given, Why: "it is no name of a setting", Fix: "Use small letters as in the documentation of PostgreSQL"}, true
		case strings.ContainsAny(value, "\n\r\x00"):
			p, bad = Problem{Name: name, Why: "its value has more than one line", Fix: "Give it in one line"}, true
		default:
			p, bad = checkValue(name, value)
		}
		if bad {
			out = append(out, p)
		}
	}
	return out
}

func settingForm(name string) bool {
	return name != "" && !strings.ContainsFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '_' && r != '.'
	})
}

// checkValue is for settings that are the user's within bounds.
func checkValue(name, value string) (Problem, bool) {
	n, err := strconv.Atoi(strings.TrimSpace(value))
	off := slices.Contains([]string{"off", "false", "no", "0", "f", "n"}, strings.ToLower(strings.TrimSpace(value)))
	const most = 4 * reserved
	switch name {
	case "wal_level":
		if value != "replica" && value != "logical" {
			return Problem{name, "standbys need replica or logical", "Leave it out, or set logical"}, true
		}
	case "max_wal_senders", "max_replication_slots":
		if err != nil || n < raised[name] {
			return Problem{name, fmt.Sprintf("the cluster itself needs up to %d", raised[name]), "Leave it out, or set more"}, true
		}
	case "max_connections":
		if err != nil || n < most {
			return Problem{name, fmt.Sprintf("%d are the agent's, and %d are the least that leaves room for clients", reserved, most), fmt.Sprintf("Set at least %d", most)}, true
		}
	case "reserved_connections":
		if err != nil || n > most {
			return Problem{name, "it takes from what clients can use", fmt.Sprintf("Set at most %d", most)}, true
		}
	case "data_sync_retry":
		if !off {
			return Problem{name, "after a failed flush the kernel may have dropped the data, and a second flush that succeeds says nothing", leaveOut}, true
		}
	case "zero_damaged_pages", "ignore_checksum_failure", "ignore_invalid_pages", "allow_in_place_tablespaces":
		if !off {
			return Problem{name, "it hides damage instead of reporting it", leaveOut}, true
		}
	case "wal_sync_method":
		if strings.EqualFold(value, "fsync_writethrough") {
			return Problem{name, "Linux does not know it", leaveOut}, true
		}
	case "wal_init_zero", "wal_recycle":
		return Problem{}, false
	}
	return Problem{}, false
}

// minMinor is the first minor of each major in which a commit of a server that
// has just started waits for its standbys. Before it there is a race: a backend
// may read that nobody is to be waited for before the checkpointer has said who.
var minMinor = map[int]int{13: 21, 14: 18, 15: 13, 16: 9, 17: 5, 18: 0}

// CheckVersion refuses server versions that the cluster's promise does not hold with.
func CheckVersion(major, minor int) error {
	if major < postgres.MinMajor || major > postgres.MaxMajor {
		return fmt.Errorf("PostgreSQL %d.%d: this holdfast knows %d to %d", major, minor, postgres.MinMajor, postgres.MaxMajor)
	}
	if least := minMinor[major]; minor < least {
		return fmt.Errorf("PostgreSQL %d.%d: right after a start its commits may skip the wait for standbys; that is repaired in %d.%d, install that or a later one", major, minor, major, least)
	}
	return nil
}
