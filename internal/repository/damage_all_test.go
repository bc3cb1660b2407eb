//go:build peers

package repository

func init() { everyDamage = true }
