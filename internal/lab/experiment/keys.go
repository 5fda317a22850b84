package experiment

import "slices"

// Keys are the keys of a study's experiment that have an effect.
func Keys(name string) []string {
	keys := []string{"experiment", "setups", "disks", "repeat", "seconds"}
	switch name {
	case "flush", "round-trip":
		return keys
	case "storage-bound":
		return append(keys, "clients", "readers", "memory", "data_to_ram")
	case "vacuum", "logical-backlog":
		return append(keys[:4:4], "memory", "data_to_ram", "megabytes")
	case "commit":
		return append(keys, "clients", "workload", "protocol", "scale", "via", "rate", "flush_times")
	}
	keys = append(keys, "after", "writers", "rate", "payload", "repeat_in_load", "reads")
	return slices.Concat(keys, drillKeys[name])
}

// drillKeys are what a fault has of its own.
var drillKeys = map[string][]string{
	"power-off":      {"lag_ms"},
	"lose-standbys":  {"standbys", "hold", "targets"},
	"all-off":        {"order"},
	"freeze":         {"hold", "promote", "targets"},
	"partition":      {"hold", "ways", "promote", "targets"},
	"double-failure": {"hold", "targets"},
	"disk-full":      {"hold"},
	"disk-hang":      {"hold"},
	"cancel-storm":   {"hold"},
	"nemesis":        {"hold"},
}
