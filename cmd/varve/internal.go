package main

import (
	"github.com/spf13/cobra"

	"github.com/varvebackup/varve/internal/layout"
	"github.com/varvebackup/varve/internal/podtool"
)

// internalCommand returns `varve internal`: what Varve's own pods run.
func internalCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "internal",
		Short: "Small jobs inside Varve's own pods",
		Long:  "Small jobs inside Varve's own pods. They are no interface: they change with the components.",
		Example: `  varve internal hold
  varve internal install-self /shared`,
	}
	c.AddCommand(holdCommand(), installSelf(), kernelBootCopy())
	return c
}

func holdCommand() *cobra.Command {
	return &cobra.Command{
		Use: "hold", Short: "Keep a pod running until it is told to stop", Args: cobra.NoArgs,
		Example: `  varve internal hold`,
		RunE:    func(c *cobra.Command, _ []string) error { return podtool.Hold(c.Context(), c.OutOrStdout()) },
	}
}

func installSelf() *cobra.Command {
	return &cobra.Command{
		Use: "install-self DIR", Short: "Copy this program to DIR/varve", Args: cobra.ExactArgs(1),
		Example: `  varve internal install-self /shared`,
		RunE:    func(_ *cobra.Command, args []string) error { return podtool.InstallSelf(args[0]) },
	}
}

func kernelBootCopy() *cobra.Command {
	var kernel, initrd, to string
	c := &cobra.Command{
		Use: "kernel-boot-copy", Short: "Copy a kernel and an initial RAM disk out of this image", Args: cobra.NoArgs,
		Example: `  varve internal kernel-boot-copy --kernel /boot/vmlinuz --initrd /boot/initrd.img --to /run/varve/kernel`,
		RunE:    func(*cobra.Command, []string) error { return podtool.KernelBootCopy(kernel, initrd, to) },
	}
	c.Flags().StringVar(&kernel, "kernel", "", "the kernel's path in this image; empty: none")
	c.Flags().StringVar(&initrd, "initrd", "", "the initial RAM disk's path in this image; empty: none")
	c.Flags().StringVar(&to, "to", layout.KernelDir, "the directory that gets the files kernel and initrd")
	return c
}
