// The only call with a callback. It is in C, because Go cannot pass one of its functions as a C function pointer.

#include <libnbd.h>

#include "_cgo_export.h"

static int call_back(void *data, const char *metacontext, uint64_t offset, nbd_extent *entries, size_t count,
                     int *error) {
	return callExtentCallback((uintptr_t)data, (char *)metacontext, offset, entries, count, error);
}

int block_status(struct nbd_handle *h, uint64_t count, uint64_t offset, uintptr_t callback) {
	nbd_extent64_callback c = {.callback = call_back, .user_data = (void *)callback};
	return nbd_block_status_64(h, count, offset, c, 0);
}
