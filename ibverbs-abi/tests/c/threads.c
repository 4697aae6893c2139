/* Threads that make, use and destroy objects of one device at once, while others list devices, open
 * and close them, and fork. */
#include <fcntl.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "pair.h"

/* How long, in seconds. */
#define TIME 3

static struct ibv_context *context;
static time_t end_of_test;
static int rounds[5];

static int goes_on(int which)
{
	__atomic_add_fetch(&rounds[which], 1, __ATOMIC_SEQ_CST);
	return time(NULL) < end_of_test;
}

/* Pairs that talk, destroyed in another order each time; what is in use is refused. */
static void *pairs(void *unused)
{
	unsigned int round = 0;

	(void)unused;
	while (goes_on(0)) {
		struct end a = {}, b = {};

		make_pair(&a, &b, context);
		exchange(&a, &b);
		exchange(&b, &a);
		SAME(ibv_destroy_cq(a.cq), EBUSY);
		SAME(ibv_dealloc_pd(b.pd), EBUSY);
		free_end(round & 1 ? &a : &b);
		free_end(round & 1 ? &b : &a);
		round++;
	}
	return NULL;
}

/* Memory that is registered, changed, advised, imported and given up. */
static void *regions(void *unused)
{
	struct ibv_pd *pd = ibv_alloc_pd(context), *other = ibv_alloc_pd(context);
	char *memory = aligned_alloc(4096, 8192);

	(void)unused;
	CHECK(pd && other && memory);
	while (goes_on(1)) {
		int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ON_DEMAND;
		struct ibv_mr *mr = ibv_reg_mr(pd, memory, 8192, access), *import;
		struct ibv_sge sge = { (uintptr_t)memory, 8192, 0 };

		CHECK(mr);
		sge.lkey = mr->lkey;
		SAME(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, 0, &sge, 1), 0);
		import = ibv_import_mr(pd, mr->handle);
		CHECK(import && import->lkey == mr->lkey);
		ibv_unimport_mr(import);
		SAME(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_PD, other,
				  memory, 4096, 0), 0);
		CHECK(mr->pd == other && mr->length == 4096);
		SAME(ibv_dereg_mr(mr), 0);
	}
	SAME(ibv_dealloc_pd(pd), 0);
	SAME(ibv_dealloc_pd(other), 0);
	free(memory);
	return NULL;
}

static void *contexts(void *unused)
{
	(void)unused;
	while (goes_on(2)) {
		struct ibv_context *other = open_loopback();
		struct ibv_xrcd_init_attr init = {
			.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
			.fd = open("/", O_RDONLY | O_CLOEXEC),
			.oflags = O_CREAT,
		};
		struct ibv_xrcd *xrcd = ibv_open_xrcd(other, &init);

		CHECK(xrcd);
		SAME(ibv_close_xrcd(xrcd), 0);
		CHECK(ibv_alloc_pd(other) && ibv_create_cq(other, 1, NULL, NULL, 0));
		SAME(ibv_close_device(other), 0);
		close(init.fd);
	}
	return NULL;
}

/* The same pointer in two threads: one call destroys it, the other is refused. Nobody else makes
 * such objects, or the other might find a new one in its place. */
static struct ibv_td *shared;

static void *destroy_shared(void *result)
{
	*(int *)result = ibv_dealloc_td(shared);
	return NULL;
}

static void *races(void *unused)
{
	struct ibv_td_init_attr init = {};

	(void)unused;
	while (goes_on(3)) {
		pthread_t thread;
		int here, there;

		shared = ibv_alloc_td(context, &init);
		CHECK(shared);
		SAME(pthread_create(&thread, NULL, destroy_shared, &there), 0);
		here = ibv_dealloc_td(shared);
		SAME(pthread_join(thread, NULL), 0);
		CHECK((!here && there == EINVAL) || (here == EINVAL && !there));
	}
	return NULL;
}

static void *forks(void *unused)
{
	(void)unused;
	while (goes_on(4)) {
		int status;
		pid_t child = fork();

		CHECK(child >= 0);
		if (!child) {
			/* The child can use the library. */
			struct ibv_device **list = ibv_get_device_list(NULL);

			_exit(list ? 0 : 1);
		}
		CHECK(waitpid(child, &status, 0) == child);
		SAME(status, 0);
		usleep(1000);
	}
	return NULL;
}

int main(void)
{
	void *(*const works[])(void *) = { pairs, regions, contexts, races, forks, pairs, regions };
	pthread_t threads[sizeof(works) / sizeof(works[0])];
	unsigned int i;

	context = open_loopback();
	end_of_test = time(NULL) + TIME;
	/* A lock that is never given back. */
	alarm(60);
	for (i = 0; i < sizeof(works) / sizeof(works[0]); i++)
		SAME(pthread_create(&threads[i], NULL, works[i], NULL), 0);
	for (i = 0; i < sizeof(works) / sizeof(works[0]); i++)
		SAME(pthread_join(threads[i], NULL), 0);
	for (i = 0; i < sizeof(rounds) / sizeof(rounds[0]); i++)
		CHECK(rounds[i] > 1);
	SAME(ibv_close_device(context), 0);
	printf("all as it should be\n");
	return 0;
}
