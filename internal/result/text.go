package result

import (
	"math"
	"strconv"
	"strings"
)

// DiskLabel names where a group's data lay: the disk, and what is unusual about
// its volume or about what a power cut leaves of it.
func DiskLabel(params map[string]any) string {
	label := ParamText(params["disk"])
	if v := ParamText(params["volume"]); v == "instance" {
		label += ", wiped with the host"
	} else if v != "" && v != "host-bound" {
		label += ", " + v
	}
	if c := ParamText(params["crash"]); c != "" && c != "lose-all" {
		label += ", " + strings.ReplaceAll(c, "-", " ")
	}
	if f, ok := Number(params["flush_times"]); ok && f != 1 {
		label += ", flush × " + strconv.FormatFloat(f, 'f', -1, 64)
	}
	if twin, ok := params["twin"].(bool); ok && twin {
		label += ", A/A twin"
	}
	return label
}

// On names a setup and its disk: "pg-any1 on local-nvme".
func On(setup string, params map[string]any) string {
	disk := DiskLabel(params)
	switch {
	case disk == "" && setup == "":
		return "this machine"
	case disk == "":
		return setup
	case setup == "" || setup == "disk":
		return disk
	}
	return setup + " on " + disk
}

// usualMode is how load runs unless something else is said.
const usualMode = "closed-loop"

// Conditions says in words what distinguishes a group beyond setup and disk,
// "" if nothing does: "1 client", "standbys cut off 1.5 s before".
func Conditions(params map[string]any) string {
	var parts []string
	if n, ok := Number(params["clients"]); ok {
		parts = append(parts, plural(int(n), "client", "clients"))
	}
	if n, ok := Number(params["lag_ms"]); ok && n > 0 {
		parts = append(parts, "standbys cut off "+Duration(n)+" before")
	}
	parts = append(parts, faultConditions(params)...)
	if n, ok := Number(params["interval_ms"]); ok && n > 0 {
		parts = append(parts, "interval "+Duration(n))
	}
	for _, k := range []string{"mode", "pattern", "call"} {
		if t := ParamText(params[k]); t != "" && t != usualMode {
			parts = append(parts, t)
		}
	}
	if d, ok := params["direct"].(bool); ok && d {
		parts = append(parts, "direct")
	}
	return strings.Join(parts, ", ")
}

// faultConditions says how a fault was done, beyond its name.
func faultConditions(params map[string]any) []string {
	var parts []string
	if n, ok := Number(params["standbys"]); ok {
		parts = append(parts, plural(int(n), "standby", "standbys"))
	}
	switch ParamText(params["ways"]) {
	case "both":
		parts = append(parts, "both ways")
	case "from-primary":
		parts = append(parts, "from the primary only")
	case "to-primary":
		parts = append(parts, "to the primary only")
	}
	switch ParamText(params["target"]) {
	case "agent":
		parts = append(parts, "the agent alone")
	case "standby":
		parts = append(parts, "a standby")
	case "postgres":
		parts = append(parts, "their servers alone")
	case "successor":
		parts = append(parts, "the new primary after the failover")
	}
	if p, ok := params["promote"].(bool); ok && p {
		parts = append(parts, "a standby promoted meanwhile")
	}
	switch ParamText(params["order"]) {
	case "stalest-first":
		parts = append(parts, "the stalest host back first")
	case "seeded":
		parts = append(parts, "hosts back in a drawn order")
	}
	if n, ok := Number(params["repeat_in_load"]); ok && n > 1 {
		parts = append(parts, ParamText(params["repeat_in_load"])+" in one load")
	}
	return parts
}

// FaultNoun is a fault in plain words, for one and for many.
func FaultNoun(fault, experiment string) (one, many string) {
	switch fault {
	case "host-power":
		return "power cut", "power cuts"
	case "host-lost":
		return "lost host", "lost hosts"
	case "standby-power":
		return "power cut of standbys", "power cuts of standbys"
	case "all-power":
		return "power cut of all hosts", "power cuts of all hosts"
	case "restart":
		return "restart", "restarts"
	case "two-hosts":
		return "loss of two hosts", "losses of two hosts"
	case "site-lost":
		return "lost site", "lost sites"
	case "partition":
		return "partition", "partitions"
	case "standby-partition":
		return "partition of a standby", "partitions of a standby"
	case "freeze":
		return "freeze", "freezes"
	case "postgres-kill":
		return "kill of the server process", "kills of the server process"
	case "standby-postgres":
		return "loss of standbys' servers", "losses of standbys' servers"
	case "double-failure":
		return "double failure", "double failures"
	case "disk-full":
		return "full disk", "full disks"
	case "disk-hang":
		return "hanging disk", "hanging disks"
	case "switchover":
		return "switchover", "switchovers"
	case "cancel-storm":
		return "storm of cancelled waits", "storms of cancelled waits"
	case "nemesis":
		return "series of random faults", "series of random faults"
	case "":
		if experiment == "power-off" {
			return "power cut", "power cuts"
		}
		return experiment + " test", experiment + " tests"
	}
	return fault + " fault", fault + " faults"
}

// Count writes a whole number with thousands separated: 41,233.
func Count(v float64) string {
	s := strconv.FormatFloat(math.Round(math.Abs(v)), 'f', 0, 64)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	if v <= -0.5 {
		s = "−" + s
	}
	return s
}

// Figure writes a measured value with three significant digits: 0.34, 2.23,
// 36.9, 1,311.
func Figure(v float64) string {
	a := math.Abs(v)
	switch {
	case a == 0:
		return "0"
	case a >= 99.95:
		return Count(v)
	case a >= 9.995:
		return strconv.FormatFloat(v, 'f', 1, 64)
	case a >= 0.095:
		return strconv.FormatFloat(v, 'f', 2, 64)
	default:
		return strconv.FormatFloat(v, 'g', 2, 64)
	}
}

// Duration writes milliseconds in the unit that reads best: 12 ms, 1.9 s, 2 min 5 s.
func Duration(ms float64) string {
	switch a := math.Abs(ms); {
	case a < 9.995:
		return Figure(ms) + " ms"
	case a < 999.5:
		return Count(ms) + " ms"
	case a < 59_950:
		return trimZero(strconv.FormatFloat(ms/1000, 'f', 1, 64)) + " s"
	default:
		s := math.Round(ms / 1000)
		text := Count(math.Trunc(s/60)) + " min"
		if rest := math.Mod(s, 60); rest != 0 {
			text += " " + strconv.Itoa(int(rest)) + " s"
		}
		return text
	}
}

func trimZero(s string) string { return strings.TrimSuffix(s, ".0") }

// PercentUp writes a rate between 0 and 1 rounded up, as an upper bound must be:
// the sentence never claims more than was shown.
func PercentUp(rate float64) string { return percent(rate, math.Ceil, -1e-9) }

// percentDown rounds down, as a lower bound must be.
func percentDown(rate float64) string { return percent(rate, math.Floor, 1e-9) }

func percent(rate float64, round func(float64) float64, slack float64) string {
	p, digits := rate*100, 0
	switch {
	case p < 1:
		digits = 2
	case p < 10:
		digits = 1
	}
	scale := math.Pow10(digits)
	return strconv.FormatFloat(round(p*scale+slack)/scale, 'f', -1, 64) + " %"
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return Count(float64(n)) + " " + many
}
