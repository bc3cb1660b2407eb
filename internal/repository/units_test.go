package repository

const (
	kib = 1 << 10
	mib = 1 << 20
	gib = 1 << 30
)
