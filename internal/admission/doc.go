// Package admission serves the validations that need to read another object: the claim of a utility volume must exist
// and have volumeMode Filesystem, a handler may write only to trackers whose machine runs on its node, schedules that
// are due equally often must not be due at the same time, and an image that volumes are clones of may not be deleted.
// With the schedules it refuses times that no rule can read. Everything else is a rule in the CRDs or a
// ValidatingAdmissionPolicy below deploy/admission.
//
// The webhook's certificate is self-signed, kept in a Secret and renewed before it expires. The API server trusts
// it through the caBundle of the ValidatingWebhookConfiguration, which this package writes. The bundle holds the
// previous authority beside the present one, so that no request fails while the replicas switch to a renewed
// certificate. Several replicas may run: they share the Secret, and the loser of a race to renew takes the winner's
// certificate.
//
// Everybody who reaches the webhook can ask it, unless the API server has a client certificate and the webhook is told
// its authority. So what a request may read is bounded, and so is what all of them read at a time.
//
// If no replica runs, only additions of utility volumes, the handlers' writes to trackers, new schedules and new times
// of schedules, and deletions of images are refused (the configuration's matchConditions). A deletion cannot be taken
// back, and nothing of an image goes while no controller runs, so nobody loses anything by the refusal. A handler retries. The controller's own writes
// to schedules, which suspend them and say what became of them, are never asked about.
package admission
