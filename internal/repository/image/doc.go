// Package image reads the disks of restore points: at random, as a whole into a target, and in comparison with each other.
//
// Every block is authenticated before it is returned or written. What cannot be read is errclass.Corrupt, and nothing wrong takes
// its place. An Image is safe for concurrent use.
package image
