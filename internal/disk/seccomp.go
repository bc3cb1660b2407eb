package disk

import (
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// architectures are the processors that refuseSockets knows.
var architectures = map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}

// refusedCalls are the system calls with which an image could make QEMU reach other machines or processes.
var refusedCalls = []uint32{unix.SYS_SOCKET, unix.SYS_CONNECT, unix.SYS_PTRACE, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV}

// firstForeignCall is the number of x86-64's first system call with 32-bit pointers. Those calls have other numbers
// than their 64-bit counterparts. No other processor has numbers this high.
const firstForeignCall = 0x40000000

// refuseSockets makes the system calls that open connections fail with EPERM, in this thread and its children. A
// listening socket that is already open still accepts connections.
func refuseSockets() error {
	arch, ok := architectures[runtime.GOARCH]
	if !ok {
		return nil
	}
	const load, equal, atLeast, end = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K, unix.BPF_RET | unix.BPF_K
	refuse := unix.SockFilter{Code: end, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)}
	program := []unix.SockFilter{
		{Code: load, K: 4}, // seccomp_data.arch
		{Code: equal, K: arch, Jt: 1},
		refuse,
		{Code: load, K: 0}, // seccomp_data.nr
		{Code: atLeast, K: firstForeignCall, Jf: 1},
		refuse,
	}
	for _, call := range refusedCalls {
		program = append(program, unix.SockFilter{Code: equal, K: call, Jf: 1}, refuse)
	}
	program = append(program, unix.SockFilter{Code: end, K: unix.SECCOMP_RET_ALLOW})
	filter := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&filter)), 0, 0)
	runtime.KeepAlive(program)
	if err != nil && !isUnsupportedCall(err) {
		return os.NewSyscallError("seccomp", err)
	}
	return nil
}
