// Package moverpod is what runs in a mover pod, `varve mover`: it moves one volume into a repository or out of it, for one DataUpload or
// DataDownload. Package datamove has the contract with the controllers, which make the pod and keep the
// repository.
//
// A run waits until its object is InProgress, moves the data, writes one datamove.Report on the object, and ends. It looks for
// spec.cancel, and for the object's deletion, by a watch from the beginning to the end. A canceled run ends within 10 seconds, whatever
// storage, volume or repository do: work that does not end in time is abandoned, and dies with the process.
//
// What cannot succeed is reported as Failed, with what to do about it. What may pass, such as a storage that does not answer, is an error
// of Run without a report: the process ends with exit code 1, and the kubelet starts it again. An upload that is repeated finds what the
// repository has stored, and makes the same restore point, whose ID comes from the object's UID. A download that is repeated goes on from
// its journal. A run whose object is gone, has ended, or has a report writes nothing, and is no error.
//
// Nothing that leaves the process has a secret: see Secrets.
package moverpod
