/* Forks: the child cannot use what is the parent's, can have objects of its own, also with a context
 * that the parent has opened, and the parent does not notice it. */
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

/* What is put together on a queue pair. */
static int build(struct ibv_qp_ex *qp, struct end *end)
{
	struct ibv_data_buf pieces[] = { { end->buffer, 4 }, { end->buffer, 4 } };
	struct ibv_sge sge = piece(end, 0, 8);
	uint64_t word = 0;

	ibv_wr_start(qp);
	ibv_wr_abort(qp);
	ibv_wr_start(qp);
	ibv_wr_send(qp);
	ibv_wr_set_sge(qp, sge.lkey, sge.addr, sge.length);
	ibv_wr_send_imm(qp, 1);
	ibv_wr_set_sge_list(qp, 1, &sge);
	ibv_wr_send_inv(qp, 1);
	ibv_wr_rdma_write(qp, end->mr->rkey, sge.addr);
	ibv_wr_set_inline_data(qp, end->buffer, 8);
	ibv_wr_rdma_write_imm(qp, end->mr->rkey, sge.addr, 1);
	ibv_wr_set_inline_data_list(qp, 2, pieces);
	ibv_wr_rdma_read(qp, end->mr->rkey, sge.addr);
	ibv_wr_atomic_cmp_swp(qp, end->mr->rkey, sge.addr, 1, 2);
	ibv_wr_atomic_fetch_add(qp, end->mr->rkey, sge.addr, 1);
	ibv_wr_atomic_write(qp, end->mr->rkey, sge.addr, &word);
	ibv_wr_local_inv(qp, end->mr->rkey);
	return ibv_wr_complete(qp);
}

static void parents_objects_are_unknown(struct ibv_qp *built, struct ibv_srq *srq, struct end *end)
{
	struct ibv_send_wr send = { .opcode = IBV_WR_SEND }, *bad_send = NULL;
	struct ibv_recv_wr recv = { .wr_id = 1 }, *bad_recv = NULL;
	struct ibv_wc wc;

	SAME(ibv_poll_cq(end->cq, 1, &wc), -1);
	SAME(ibv_req_notify_cq(end->cq, 0), EINVAL);
	SAME(ibv_post_send(end->qp, &send, &bad_send), EINVAL);
	CHECK(bad_send == &send);
	SAME(ibv_post_recv(end->qp, &recv, &bad_recv), EINVAL);
	CHECK(bad_recv == &recv);
	bad_recv = NULL;
	SAME(ibv_post_srq_recv(srq, &recv, &bad_recv), EINVAL);
	CHECK(bad_recv == &recv);
	SAME(build((struct ibv_qp_ex *)built, end), EINVAL);
	CHECK(!ibv_qp_to_qp_ex(built));
	REFUSED(ibv_reg_mr(end->pd, end->buffer, 64, 0), EINVAL);
	SAME(ibv_dereg_mr(end->mr), EINVAL);
	SAME(ibv_destroy_qp(end->qp), EINVAL);
	SAME(ibv_destroy_cq(end->cq), EINVAL);
	REFUSED(ibv_create_cq(end->pd->context, 4, NULL, NOTHING(struct ibv_comp_channel), 0), EINVAL);
}

/* A context of the parent is one of the child: what is made with it is the child's own. */
static void parents_context_makes_own_objects(struct ibv_context *context)
{
	struct ibv_alloc_dm_attr attr = { .length = 64 };
	struct ibv_device_attr device;
	struct ibv_context *import;
	struct end a = {}, b = {};
	char word[4] = "abc";
	struct ibv_dm *dm;

	SAME(ibv_query_device(context, &device), 0);
	dm = ibv_alloc_dm(context, &attr);
	CHECK(dm && dm->context == context);
	SAME(ibv_memcpy_to_dm(dm, 4, word, sizeof(word)), 0);
	memset(word, 0, sizeof(word));
	SAME(ibv_memcpy_from_dm(word, dm, 4, sizeof(word)), 0);
	CHECK(!strcmp(word, "abc"));
	SAME(ibv_free_dm(dm), 0);

	make_pair(&a, &b, context);
	CHECK(a.qp->context == context && a.cq->context == context);
	exchange(&a, &b);
	import = ibv_import_device(dup(context->cmd_fd));
	CHECK(import && import->async_fd == context->async_fd);
	SAME(ibv_close_device(import), 0);
	free_end(&a);
	free_end(&b);
	SAME(ibv_close_device(context), 0);
	MINUS_ONE(ibv_close_device(context), EINVAL);
}

/* The same in a child of a child, which has used it too, and leaves it open. */
static void in_a_child_of_a_child(struct ibv_context *context)
{
	struct ibv_pd *pd = ibv_alloc_pd(context);

	CHECK(pd);
	IN_CHILD(SAME(ibv_dealloc_pd(pd), EINVAL); parents_context_makes_own_objects(context));
	SAME(ibv_dealloc_pd(pd), 0);
}

/* Several children make the same with it at once. */
static void children_at_once(struct ibv_context *context)
{
	struct ibv_alloc_dm_attr attr = { .length = 4096 };
	pid_t children[5];
	int i, status;

	for (i = 0; i < 5; i++) {
		children[i] = fork();
		CHECK(children[i] >= 0);
		if (!children[i]) {
			alarm(60);
			CHECK(ibv_alloc_dm(context, &attr));
			exit(0);
		}
	}
	for (i = 0; i < 5; i++) {
		CHECK(waitpid(children[i], &status, 0) == children[i]);
		SAME(status, 0);
	}
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
	for (i = 0; i < 40; i++) {
		IN_CHILD(own_objects());
		IN_CHILD(CHECK(ibv_alloc_pd(context)));
	}
	stop = 1;
	for (i = 0; i < 2; i++)
		SAME(pthread_join(threads[i], NULL), 0);
}

int main(void)
{
	struct ibv_srq_init_attr srq_init = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_qp_init_attr_ex init = {
		.cap = { .max_send_wr = 16, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1,
			 .max_inline_data = 64 },
		.qp_type = IBV_QPT_RC,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_SEND,
	};
	struct ibv_context *context;
	struct end a = {}, b = {};
	struct ibv_srq *srq;
	struct ibv_qp *qp;

	/* Nothing is there yet. */
	IN_CHILD(own_objects());
	SAME(ibv_fork_init(), 0);
	SAME(ibv_is_fork_initialized(), IBV_FORK_UNNEEDED);

	context = open_loopback();
	make_pair(&a, &b, context);
	exchange(&a, &b);
	srq = ibv_create_srq(a.pd, &srq_init);
	init.send_cq = init.recv_cq = a.cq;
	init.pd = a.pd;
	qp = ibv_create_qp_ex(context, &init);
	CHECK(srq && qp);
	IN_CHILD(parents_objects_are_unknown(qp, srq, &a));
	exchange(&a, &b);
	IN_CHILD(parents_context_makes_own_objects(context));
	exchange(&a, &b);
	IN_CHILD(in_a_child_of_a_child(context));
	exchange(&b, &a);
	children_at_once(context);
	SAME(ibv_destroy_qp(qp), 0);
	SAME(ibv_destroy_srq(srq), 0);
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
