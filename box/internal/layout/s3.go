package layout

// S3 has the data, the certificates and the keys of the S3 service beside the box.
func (b Box) S3() string { return b.join("s3") }

// S3Process is the record of the S3 service's process.
func (b Box) S3Process() string { return b.join("s3", "process.json") }

// S3Log is the log of the S3 service since its last start.
func (b Box) S3Log() string { return b.join("s3", "log") }

// S3Description tells clients where the S3 service is. It exists once the service has run.
func (b Box) S3Description() string { return b.join("s3.json") }

// S3Cgroup is the S3 service's part of the box's control group, so that whatever removes the box ends the service.
func (b Box) S3Cgroup() string { return b.Cgroup() + "/s3" }
