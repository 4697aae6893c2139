/* What the C programs of the tests share: each stops at the first thing that is not as it should be,
 * and says which. */
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <infiniband/verbs.h>

#define CHECK(what) \
	do { \
		if (!(what)) { \
			fprintf(stderr, "%s:%d: %s (errno %d: %s)\n", __FILE__, __LINE__, #what, errno, \
				strerror(errno)); \
			exit(1); \
		} \
	} while (0)

/* Two numbers are the same. */
#define SAME(what, wanted) \
	do { \
		long long is_ = (long long)(what), wanted_ = (long long)(wanted); \
		if (is_ != wanted_) { \
			fprintf(stderr, "%s:%d: %s is %lld (0x%llx), not %s (%lld)\n", __FILE__, \
				__LINE__, #what, is_, is_, #wanted, wanted_); \
			exit(1); \
		} \
	} while (0)

/* A call gives NULL, and sets errno. */
#define REFUSED(call, wanted) \
	do { \
		errno = 0; \
		CHECK((call) == NULL); \
		SAME(errno, wanted); \
	} while (0)

/* A call gives -1, and sets errno. */
#define MINUS_ONE(call, wanted) \
	do { \
		errno = 0; \
		SAME(call, -1); \
		SAME(errno, wanted); \
	} while (0)

/* A pointer that is no object. */
#define NOTHING(type) ((type *)(uintptr_t)0x1000)

/* Opens the device of the loopback interface. */
static inline struct ibv_context *open_loopback(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL), **each;
	struct ibv_context *context = NULL;

	CHECK(list);
	for (each = list; *each; each++)
		if (!strcmp(ibv_get_device_name(*each), "rxe_lo"))
			context = ibv_open_device(*each);
	CHECK(context);
	ibv_free_device_list(list);
	return context;
}

#endif
