package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// recordBytes is the size of a record. Record i begins with i+1, so that none is zero.
const recordBytes = 4096

// openLog opens a log of records: PATH, or PATH@OFFSET for a part of a device.
func openLog(place string, flags int) (*os.File, int64, error) {
	path, at, found := strings.Cut(place, "@")
	offset := int64(0)
	if found {
		var err error
		if offset, err = strconv.ParseInt(at, 10, 64); err != nil {
			return nil, 0, err
		}
	}
	f, err := os.OpenFile(path, flags, 0o644)
	return f, offset, err
}

// appendRecords writes records until it is killed, or until it has written 2000: each to the first log, and, when that
// is on stable storage, to the second. It takes its time: a snapshot is to come meanwhile.
func appendRecords(first, second string) error {
	a, aOffset, err := openLog(first, os.O_CREATE|os.O_WRONLY|syscall.O_DSYNC)
	if err != nil {
		return err
	}
	b, bOffset, err := openLog(second, os.O_CREATE|os.O_WRONLY|syscall.O_DSYNC)
	if err != nil {
		return err
	}
	record := make([]byte, recordBytes)
	for i := range int64(2000) {
		binary.LittleEndian.PutUint64(record, uint64(i)+1)
		if _, err := a.WriteAt(record, aOffset+i*recordBytes); err != nil {
			return err
		}
		if _, err := b.WriteAt(record, bOffset+i*recordBytes); err != nil {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
	return errors.Join(a.Close(), b.Close())
}

// countRecords prints how many records the second log has. It fails unless both logs together are what a moment of appendRecords left.
func countRecords(first, second string) error {
	a, err := countLog(first)
	if err != nil {
		return err
	}
	b, err := countLog(second)
	if err != nil {
		return err
	}
	if a != b && a != b+1 {
		return fmt.Errorf("the first log has %d records and the second %d", a, b)
	}
	fmt.Print(b)
	return nil
}

func countLog(place string) (int64, error) {
	f, offset, err := openLog(place, os.O_RDONLY)
	if err != nil {
		return 0, err
	}
	record := make([]byte, recordBytes)
	for i := int64(0); ; i++ {
		_, err := f.ReadAt(record, offset+i*recordBytes)
		number := binary.LittleEndian.Uint64(record)
		if errors.Is(err, io.EOF) || err == nil && number == 0 {
			return i, errors.Join(nothingBehind(f, offset+i*recordBytes), f.Close())
		}
		if err != nil {
			return 0, err
		}
		if number != uint64(i)+1 {
			return 0, fmt.Errorf("%s: record %d says %d", place, i, number)
		}
	}
}

// nothingBehind fails if any of the records that could follow is there.
func nothingBehind(f *os.File, offset int64) error {
	record := make([]byte, recordBytes)
	for i := range int64(16) {
		_, err := f.ReadAt(record, offset+i*recordBytes)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if number := binary.LittleEndian.Uint64(record); number != 0 {
			return fmt.Errorf("record %d follows a gap", number)
		}
	}
	return nil
}

// printCapacity prints the size in bytes of the file system that has path.
func printCapacity(path string) error {
	var st syscall.Statfs_t
	if err := syscall.Statfs(path, &st); err != nil {
		return err
	}
	fmt.Print(int64(st.Blocks) * st.Bsize)
	return nil
}
