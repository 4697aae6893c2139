/* Events of each kind of object, and that destroying it waits until they are acknowledged. */
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include "pair.h"

static struct ibv_context *context;

/* An object that a thread destroys. */
struct victim {
	int (*destroy)(void *object);
	void *object;
	pthread_t thread;
	int is_gone;
};

static void *destroy(void *argument)
{
	struct victim *victim = argument;

	SAME(victim->destroy(victim->object), 0);
	__atomic_store_n(&victim->is_gone, 1, __ATOMIC_SEQ_CST);
	return NULL;
}

/* Begins to destroy an object, which must wait. */
static void begin(struct victim *victim)
{
	SAME(pthread_create(&victim->thread, NULL, destroy, victim), 0);
	usleep(50000);
	CHECK(!__atomic_load_n(&victim->is_gone, __ATOMIC_SEQ_CST));
}

static void end(struct victim *victim)
{
	SAME(pthread_join(victim->thread, NULL), 0);
	CHECK(victim->is_gone);
}

static int destroy_cq(void *cq)
{
	return ibv_destroy_cq(cq);
}

static int destroy_qp(void *qp)
{
	return ibv_destroy_qp(qp);
}

static int destroy_srq(void *srq)
{
	return ibv_destroy_srq(srq);
}

/* Waits for an event of a type; others that come are acknowledged. */
static struct ibv_async_event event_of(enum ibv_event_type type)
{
	struct pollfd sleeper = { .fd = context->async_fd, .events = POLLIN };
	struct ibv_async_event event;

	for (;;) {
		if (poll(&sleeper, 1, 20000) != 1) {
			fprintf(stderr, "no event: %s\n", ibv_event_type_str(type));
			exit(1);
		}
		SAME(ibv_get_async_event(context, &event), 0);
		if (event.event_type == type)
			return event;
		ibv_ack_async_event(&event);
	}
}

static void completion_events(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct end a = {}, b = {};
	struct victim victim = { .destroy = destroy_cq };
	struct ibv_cq *found;
	void *word;
	int i;

	CHECK(channel);
	b.cq = ibv_create_cq(context, 16, &channel, channel, 0);
	CHECK(b.cq);
	make_pair(&a, &b, context);
	for (i = 0; i < 3; i++) {
		SAME(ibv_req_notify_cq(b.cq, 0), 0);
		exchange(&a, &b);
		SAME(ibv_get_cq_event(channel, &found, &word), 0);
		CHECK(found == b.cq && word == &channel);
	}
	SAME(ibv_destroy_qp(b.qp), 0);
	ibv_ack_cq_events(b.cq, 2);
	victim.object = b.cq;
	begin(&victim);
	ibv_ack_cq_events(b.cq, 1);
	end(&victim);
	SAME(ibv_destroy_comp_channel(channel), 0);
	SAME(ibv_dereg_mr(b.mr), 0);
	SAME(ibv_dealloc_pd(b.pd), 0);
	free(b.buffer);
	free_end(&a);
}

/* A queue that overflows tells so, and fails its queue pair. */
static void overflow(void)
{
	struct end a = { .cq = ibv_create_cq(context, 1, NULL, NULL, 0) }, b = {};
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE };
	struct victim victim = { .destroy = destroy_cq };
	struct ibv_async_event event;
	int i, capacity = a.cq->cqe;

	make_pair(&a, &b, context);
	for (i = 0; i <= capacity; i++)
		SAME(post(&a, &wr), 0);
	event = event_of(IBV_EVENT_CQ_ERR);
	CHECK(event.element.cq == a.cq);
	SAME(ibv_destroy_qp(a.qp), 0);
	victim.object = a.cq;
	begin(&victim);
	ibv_ack_async_event(&event);
	end(&victim);
	SAME(ibv_dereg_mr(a.mr), 0);
	SAME(ibv_dealloc_pd(a.pd), 0);
	free(a.buffer);
	free_end(&b);
}

/* What a peer must not do is told to the one that it did it to. */
static void queue_pair(void)
{
	struct end a = {}, b = {};
	struct ibv_sge sge;
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE };
	struct victim victim = { .destroy = destroy_qp };
	struct ibv_async_event event;

	make_pair(&a, &b, context);
	sge = piece(&a, 0, 8);
	wr.wr.rdma.rkey = b.mr->rkey;
	SAME(post(&a, &wr), 0);
	SAME(completion(a.cq).status, IBV_WC_REM_ACCESS_ERR);
	event = event_of(IBV_EVENT_QP_ACCESS_ERR);
	CHECK(event.element.qp == b.qp);
	victim.object = b.qp;
	begin(&victim);
	ibv_ack_async_event(&event);
	end(&victim);
	free_end(&a);
	SAME(ibv_destroy_cq(b.cq), 0);
	SAME(ibv_dereg_mr(b.mr), 0);
	SAME(ibv_dealloc_pd(b.pd), 0);
	free(b.buffer);
}

static void shared_receive_queue(void)
{
	struct end a = {}, b = {};
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq_attr attr = { .srq_limit = 2 };
	struct ibv_qp_init_attr qp = { .cap = { .max_send_wr = 4 }, .qp_type = IBV_QPT_RC };
	struct ibv_qp_attr error = { .qp_state = IBV_QPS_ERR };
	struct ibv_recv_wr recv = { .wr_id = 3 }, *bad;
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND };
	struct victim victim = { .destroy = destroy_srq };
	struct ibv_async_event limit, last;
	struct ibv_qp *plain;
	struct ibv_srq *srq;

	make_end(&a, context);
	make_end(&b, context);
	srq = ibv_create_srq(b.pd, &init);
	CHECK(srq);
	qp.srq = srq;
	qp.send_cq = qp.recv_cq = b.cq;
	plain = b.qp;
	b.qp = ibv_create_qp(b.pd, &qp);
	CHECK(b.qp && b.qp->srq == srq);
	connect_to(a.qp, b.qp->qp_num);
	connect_to(b.qp, a.qp->qp_num);
	SAME(ibv_post_srq_recv(srq, &recv, &bad), 0);
	SAME(ibv_post_srq_recv(srq, &recv, &bad), 0);
	SAME(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT), 0);
	SAME(post(&a, &wr), 0);
	success(a.cq);
	SAME(success(b.cq).wr_id, 3);
	limit = event_of(IBV_EVENT_SRQ_LIMIT_REACHED);
	CHECK(limit.element.srq == srq);
	SAME(ibv_modify_qp(b.qp, &error, IBV_QP_STATE), 0);
	last = event_of(IBV_EVENT_QP_LAST_WQE_REACHED);
	CHECK(last.element.qp == b.qp);
	ibv_ack_async_event(&last);
	SAME(ibv_destroy_srq(srq), EBUSY);
	SAME(ibv_destroy_qp(plain), 0);
	SAME(ibv_destroy_qp(b.qp), 0);
	victim.object = srq;
	begin(&victim);
	ibv_ack_async_event(&limit);
	end(&victim);
	SAME(ibv_destroy_cq(b.cq), 0);
	SAME(ibv_dereg_mr(b.mr), 0);
	SAME(ibv_dealloc_pd(b.pd), 0);
	free(b.buffer);
	free_end(&a);
}

int main(void)
{
	context = open_loopback();
	completion_events();
	overflow();
	queue_pair();
	shared_receive_queue();
	SAME(ibv_close_device(context), 0);
	printf("all as it should be\n");
	return 0;
}
