package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-db/holdfast/internal/disk"
	"github.com/holdfast-db/holdfast/internal/disk/control"
	"github.com/holdfast-db/holdfast/internal/disk/fuse"
)

func newSimdiskCmd(env Env) *cobra.Command {
	var o simdiskOptions
	kinds := make([]string, 0, 8)
	about := ""
	for _, k := range disk.NamedDisks() {
		kinds = append(kinds, k.Name)
		about += fmt.Sprintf("  %-14s %s\n", k.Name, k.About)
	}
	cmd := &cobra.Command{
		Use:   "simdisk --disk NAME BACKING MOUNTPOINT",
		Short: "Mount a disk that can lose power",
		Long: "Mounts a simulated disk in the foreground: what programs write to it is volatile until\n" +
			"they flush it, a flush takes as long as on the named disk, and `simdisk cut` pulls the plug.\n" +
			"BACKING is a directory for what is durable, MOUNTPOINT an empty directory.\n\nDisks:\n" + about,
		Example: "  mkdir -p /tmp/mnt && holdfast simdisk --disk cloud-volume /tmp/backing /tmp/mnt\n" +
			"  holdfast simdisk cut /tmp/backing.sock",
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error { return runSimdisk(cmd.Context(), env, o, args) },
	}
	f := cmd.Flags()
	f.StringVar(&o.disk, "disk", "", "kind of disk: "+strings.Join(kinds, ", "))
	f.StringVar(&o.profile, "profile", string(disk.Ext4), "whose rules say what is durable when: "+joined(disk.Profiles()))
	f.StringVar(&o.crash, "crash", string(disk.LoseAll), "what a cut leaves of what was not flushed: "+joined(disk.Policies()))
	f.StringVar(&o.size, "size", "0", "space for files in bytes, or with K, M, G or T; 0: as BACKING has")
	f.Uint64Var(&o.seed, "seed", 1, "seed of latencies and of what a crash keeps")
	f.StringVar(&o.socket, "control", "", "control socket (default BACKING.sock)")
	f.BoolVar(&o.lifeline, "lifeline", false, "end as by a power cut when standard input ends")
	f.Int64Var(&o.dirtyLimit, "dirty-limit", disk.DefaultDirtyLimit, "bytes that may be waiting to be written back before writers wait")
	f.BoolVar(&o.nonempty, "nonempty", false, "mount over a directory that is not empty; what it holds is out of sight meanwhile")
	_ = cmd.MarkFlagRequired("disk")
	_ = cmd.RegisterFlagCompletionFunc("disk", cobra.FixedCompletions(kinds, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("crash", cobra.FixedCompletions(strings.Split(joined(disk.Policies()), ", "), cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("profile", cobra.FixedCompletions(strings.Split(joined(disk.Profiles()), ", "), cobra.ShellCompDirectiveNoFileComp))
	cmd.AddCommand(simdiskControlCmds(env)...)
	return cmd
}

// joined lists names for a help text.
func joined[T ~string](names []T) string {
	all := make([]string, len(names))
	for i, n := range names {
		all[i] = string(n)
	}
	return strings.Join(all, ", ")
}

type simdiskOptions struct {
	disk, profile, crash, socket, size string
	seed                               uint64
	lifeline, nonempty                 bool
	dirtyLimit                         int64
}

func runSimdisk(ctx context.Context, env Env, o simdiskOptions, args []string) error {
	kind, err := disk.ByName(o.disk)
	if err != nil {
		return err
	}
	policy, err := disk.ParsePolicy(o.crash)
	if err != nil {
		return err
	}
	profile, err := disk.ParseProfile(o.profile)
	if err != nil {
		return err
	}
	size, err := fuse.ParseSize(o.size)
	if err != nil {
		return fmt.Errorf("--size %s: %w", o.size, err)
	}
	if o.dirtyLimit < 1<<20 {
		return fmt.Errorf("--dirty-limit %d: want at least 1048576 bytes", o.dirtyLimit)
	}
	if o.socket == "" {
		o.socket = filepath.Clean(args[0]) + ".sock"
	}
	if err := usablePaths(o, args[0], args[1]); err != nil {
		return err
	}
	fuse.Tune()
	var lifeline chan struct{}
	if o.lifeline {
		lifeline = make(chan struct{})
		go func() {
			_, _ = io.Copy(io.Discard, env.Stdin)
			close(lifeline)
		}()
	}
	err = fuse.Run(ctx, fuse.Config{
		Backing: args[0], Mountpoint: args[1], Kind: kind, Policy: policy, Profile: profile, Seed: o.seed, DirtyLimit: o.dirtyLimit, Size: size,
		Log: slog.New(slog.NewTextHandler(env.Stderr, nil)),
	}, o.socket, lifeline, func() {
		if isTerminal(env.Stderr) {
			fmt.Fprintf(env.Stderr, "%s is mounted on %s. Pull the plug with: holdfast simdisk cut %s\n", kind.Name, args[1], o.socket)
		}
		fmt.Fprintln(env.Stdout, "ready")
	})
	return refused(err)
}

func usablePaths(o simdiskOptions, backing, mountpoint string) error {
	if err := usableMountpoint(mountpoint, o.nonempty); err != nil {
		return err
	}
	if err := usableDir("backing directory", backing); err != nil {
		return err
	}
	return usableSocket(o.socket, backing)
}

// simdiskControlCmds are the commands that talk to a disk that is mounted.
func simdiskControlCmds(env Env) []*cobra.Command {
	var stayOff bool
	cut := simdiskControl(env, "cut", "Cut the power, and bring it back", 0,
		func(ctx context.Context, c *control.Client, _ map[string]string) (any, string, error) {
			return cutAndOn(ctx, c, stayOff)
		})
	cut.Flags().BoolVar(&stayOff, "stay-off", false, "leave the power off (simdisk on brings it back)")
	plain := func(use, short, done string, f func(*control.Client, context.Context) error) *cobra.Command {
		return simdiskControl(env, use, short, 0, func(ctx context.Context, c *control.Client, _ map[string]string) (any, string, error) {
			return map[string]any{"ok": true}, done, f(c, ctx)
		})
	}
	return []*cobra.Command{
		cut,
		simdiskControl(env, "on", "Bring the power back after cut --stay-off", 0,
			func(ctx context.Context, c *control.Client, _ map[string]string) (any, string, error) {
				lost, err := c.On(ctx)
				return lost, "power is back; " + droppedText(lost), err
			}),
		plain("wipe", "Empty a disk whose power is cut", "the disk is empty", (*control.Client).Wipe),
		plain("sync", "Make everything durable", "everything is durable", (*control.Client).Sync),
		plain("detach", "Unmount cleanly; what is durable stays, to be attached elsewhere", "detached", (*control.Client).Detach),
		simdiskAttach(env),
		plain("stop", "Unmount cleanly and end the disk", "stopped", (*control.Client).Stop),
		simdiskControl(env, "stats", "Show the disk's own counters", 0,
			func(ctx context.Context, c *control.Client, _ map[string]string) (any, string, error) {
				stats, err := c.Stats(ctx)
				return stats, statsText(stats), err
			}),
		simdiskControl(env, "set", "Change settings while the disk is mounted", 1,
			func(ctx context.Context, c *control.Client, values map[string]string) (any, string, error) {
				return map[string]any{"ok": true}, "set", c.Set(ctx, values)
			}),
	}
}

// simdiskAttach mounts a disk that is off at another place.
func simdiskAttach(env Env) *cobra.Command {
	var delay time.Duration
	cmd := &cobra.Command{
		Use: "attach CONTROL-SOCKET MOUNTPOINT", Short: "Mount a disk that was detached, or whose power is cut, at another place",
		Example: "  holdfast simdisk attach /tmp/backing.sock /tmp/mnt2 --delay 5s", Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			mountpoint, err := filepath.Abs(args[1])
			if err != nil {
				return err
			}
			c, err := control.Dial(args[0])
			if err != nil {
				return infraError(err)
			}
			lost, err := c.Attach(cmd.Context(), mountpoint, delay)
			if err != nil {
				return infraError(err)
			}
			_, err = fmt.Fprintf(env.Stdout, "attached at %s; %s\n", mountpoint, droppedText(lost))
			return err
		},
	}
	cmd.Flags().DurationVar(&delay, "delay", 0, "how long it takes until the disk is there")
	return cmd
}

// simdiskControl makes one control command; with minValues above 0 it takes
// KEY=VALUE arguments.
func simdiskControl(env Env, use, short string, minValues int,
	do func(context.Context, *control.Client, map[string]string) (any, string, error),
) *cobra.Command {
	var asJSON bool
	args, usage, example := cobra.ExactArgs(1), use+" CONTROL-SOCKET", "  holdfast simdisk "+use+" /tmp/backing.sock"
	if minValues > 0 {
		args, usage = cobra.MinimumNArgs(1+minValues), usage+" KEY=VALUE..."
		example += " flush_ms=5 crash=lying"
		short += ":\n" + strings.Join(fuse.Settings(), ", ")
	}
	cmd := &cobra.Command{
		Use: usage, Short: strings.SplitN(short, ":\n", 2)[0], Long: short + ".", Example: example, Args: args,
		RunE: func(cmd *cobra.Command, args []string) error {
			values := map[string]string{}
			for _, a := range args[1:] {
				k, v, ok := strings.Cut(a, "=")
				if !ok {
					return fmt.Errorf("%q: want KEY=VALUE", a)
				}
				values[k] = v
			}
			c, err := control.Dial(args[0])
			if err != nil {
				return infraError(noDisk(args[0], err))
			}
			result, text, err := do(cmd.Context(), c, values)
			var refused *control.RefusedError
			if minValues > 0 && errors.As(err, &refused) {
				return err // a wrong setting is wrong usage
			}
			if err != nil {
				return infraError(err)
			}
			if asJSON {
				return json.NewEncoder(env.Stdout).Encode(result)
			}
			_, err = fmt.Fprintln(env.Stdout, strings.TrimRight(text, "\n"))
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// noDisk says why nobody could be spoken to at path.
func noDisk(path string, err error) error {
	if errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ENOTDIR) {
		return fmt.Errorf("no simulated disk answers at %s (is the disk mounted? its socket is BACKING.sock unless --control said otherwise)", path)
	}
	return fmt.Errorf("speak to the simulated disk at %s: %w", path, err)
}

// cutResult is the JSON of simdisk cut.
type cutResult struct {
	CutMs float64 `json:"cut_ms"`
	OnMs  float64 `json:"on_ms,omitempty"`
	*control.Dropped
}

func cutAndOn(ctx context.Context, c *control.Client, stayOff bool) (any, string, error) {
	began := time.Now()
	if _, err := c.Cut(ctx); err != nil {
		return nil, "", err
	}
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	r := cutResult{CutMs: ms(time.Since(began))}
	if stayOff {
		return r, fmt.Sprintf("power cut after %.1f ms, and off", r.CutMs), nil
	}
	began = time.Now()
	lost, err := c.On(ctx)
	r.OnMs, r.Dropped = ms(time.Since(began)), &lost
	return r, fmt.Sprintf("power cut after %.1f ms, back after another %.1f ms; %s", r.CutMs, r.OnMs, droppedText(lost)), err
}

func droppedText(d control.Dropped) string {
	s := fmt.Sprintf("dropped %d bytes and %d operations that were not durable", d.Bytes, d.Operations)
	if d.Kept > 0 {
		s += fmt.Sprintf(", kept %d bytes by chance", d.Kept)
	}
	return s
}

func statsText(stats map[string]float64) string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(stats)) {
		fmt.Fprintf(&b, "%-22s %s\n", k, strings.TrimSuffix(fmt.Sprintf("%.3f", stats[k]), ".000"))
	}
	return b.String()
}
