/* Forks: the child cannot use what is the parent's, can have objects of its own, and the parent does
 * not notice it. */
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "pair.h"

/* Runs a function in a child, which must end well. */
#define IN_CHILD(call) \
	do { \
		pid_t child_ = fork(); \
		int status_; \
		CHECK(child_ >= 0); \
		if (!child_) { \
			alarm(60); \
			call; \
			_exit(0); \
		} \
		CHECK(waitpid(child_, &status_, 0) == child_); \
		SAME(status_, 0); \
	} while (0)

static void parents_objects_are_unknown(struct ibv_context *context, struct end *end)
{
	struct ibv_send_wr send = { .opcode = IBV_WR_SEND }, *bad_send = NULL;
	struct ibv_recv_wr recv = { .wr_id = 1 }, *bad_recv = NULL;
	struct ibv_device_attr attr;
	struct ibv_wc wc;

	SAME(ibv_poll_cq(end->cq, 1, &wc), -1);
	SAME(ibv_req_notify_cq(end->cq, 0), EINVAL);
	SAME(ibv_post_send(end->qp, &send, &bad_send), EINVAL);
	CHECK(bad_send == &send);
	SAME(ibv_post_recv(end->qp, &recv, &bad_recv), EINVAL);
	CHECK(bad_recv == &recv);
	REFUSED(ibv_reg_mr(end->pd, end->buffer, 64, 0), EINVAL);
	SAME(ibv_dereg_mr(end->mr), EINVAL);
	SAME(ibv_destroy_qp(end->qp), EINVAL);
	SAME(ibv_destroy_cq(end->cq), EINVAL);
	SAME(ibv_query_device(context, &attr), EINVAL);
	MINUS_ONE(ibv_close_device(context), EINVAL);
}

static void own_objects(void)
{
	struct ibv_context *context = open_loopback();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, NULL, 0);

	CHECK(pd && cq);
	SAME(ibv_destroy_cq(cq), 0);
	SAME(ibv_dealloc_pd(pd), 0);
	SAME(ibv_close_device(context), 0);
}

/* The address sanitizer of GCC 12 does not unlock its own allocator in the child. */
#ifndef __SANITIZE_ADDRESS__
static volatile int stop;

static void *busy(void *context)
{
	while (!stop) {
		struct ibv_pd *pd = ibv_alloc_pd(context);

		CHECK(pd);
		SAME(ibv_dealloc_pd(pd), 0);
		ibv_free_device_list(ibv_get_device_list(NULL));
	}
	return NULL;
}

/* Forks while other threads hold locks. */
static void busy_parent(struct ibv_context *context)
{
	pthread_t threads[2];
	int i;

	for (i = 0; i < 2; i++)
		SAME(pthread_create(&threads[i], NULL, busy, context), 0);
	for (i = 0; i < 40; i++)
		IN_CHILD(own_objects());
	stop = 1;
	for (i = 0; i < 2; i++)
		SAME(pthread_join(threads[i], NULL), 0);
}
#else
static void busy_parent(struct ibv_context *context)
{
	(void)context;
}
#endif

int main(void)
{
	struct ibv_context *context;
	struct end a = {}, b = {};

	/* Nothing is there yet. */
	IN_CHILD(own_objects());
	SAME(ibv_fork_init(), 0);
	SAME(ibv_is_fork_initialized(), IBV_FORK_UNNEEDED);

	context = open_loopback();
	make_pair(&a, &b, context);
	exchange(&a, &b);
	IN_CHILD(parents_objects_are_unknown(context, &a));
	exchange(&a, &b);
	IN_CHILD(own_objects());
	exchange(&b, &a);
	/* Memory that is registered is the parent's, whatever the child writes to its copy. */
	IN_CHILD(memset(b.buffer, 'x', BUFFER));
	exchange(&a, &b);

	busy_parent(context);
	exchange(&a, &b);
	free_end(&a);
	free_end(&b);
	SAME(ibv_close_device(context), 0);
	printf("all as it should be\n");
	return 0;
}
