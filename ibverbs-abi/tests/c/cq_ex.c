/* Extended completion queues: read one completion after the other, stamped, overrun; and resized and
 * moderated ones. */
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include "pair.h"

static struct ibv_cq *as_cq(struct ibv_cq_ex *cq)
{
	CHECK(cq);
	return ibv_cq_ex_to_cq(cq);
}

static void refusals(struct ibv_context *context)
{
	struct ibv_cq_init_attr_ex attr = { .cqe = 4 };
	struct ibv_poll_cq_attr poll = {};
	struct ibv_cq_ex *cq;

	attr.wc_flags = IBV_WC_EX_WITH_FLOW_TAG;
	REFUSED(ibv_create_cq_ex(context, &attr), EOPNOTSUPP);
	attr.wc_flags = IBV_WC_STANDARD_FLAGS;
	attr.comp_mask = 1 << 9;
	REFUSED(ibv_create_cq_ex(context, &attr), EINVAL);
	attr.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS;
	attr.flags = 1 << 9;
	REFUSED(ibv_create_cq_ex(context, &attr), EINVAL);
	attr.flags = 0;
	attr.cqe = 0;
	REFUSED(ibv_create_cq_ex(context, &attr), EINVAL);
	attr.cqe = 4;
	attr.comp_vector = context->num_comp_vectors;
	REFUSED(ibv_create_cq_ex(context, &attr), EINVAL);
	attr.comp_vector = 0;
	attr.channel = NOTHING(struct ibv_comp_channel);
	REFUSED(ibv_create_cq_ex(context, &attr), EINVAL);
	attr.channel = NULL;
	cq = ibv_create_cq_ex(context, &attr);
	CHECK(cq && cq->cqe >= 4);
	SAME(ibv_start_poll(cq, &poll), ENOENT);
	poll.comp_mask = 1;
	SAME(ibv_start_poll(cq, &poll), EINVAL);
	/* Harmless, though nothing was started. */
	ibv_end_poll(cq);
	SAME(ibv_destroy_cq(as_cq(cq)), 0);
}

static void parent_domain(struct ibv_context *context)
{
	struct ibv_parent_domain_init_attr domain = { .pd = ibv_alloc_pd(context) };
	struct ibv_cq_init_attr_ex attr = {
		.cqe = 4,
		.comp_mask = IBV_CQ_INIT_ATTR_MASK_PD,
		.parent_domain = domain.pd,
	};
	struct ibv_cq_ex *cq;

	/* An ordinary protection domain is none. */
	REFUSED(ibv_create_cq_ex(context, &attr), EINVAL);
	attr.parent_domain = ibv_alloc_parent_domain(context, &domain);
	CHECK(attr.parent_domain);
	cq = ibv_create_cq_ex(context, &attr);
	SAME(ibv_dealloc_pd(attr.parent_domain), EBUSY);
	SAME(ibv_destroy_cq(as_cq(cq)), 0);
	SAME(ibv_dealloc_pd(attr.parent_domain), 0);
	SAME(ibv_dealloc_pd(domain.pd), 0);
}

static uint64_t raw_clock(struct ibv_context *context)
{
	struct ibv_values_ex values = { .comp_mask = IBV_VALUES_MASK_RAW_CLOCK };

	SAME(ibv_query_rt_values_ex(context, &values), 0);
	return values.raw_clock.tv_nsec;
}

static uint64_t wall_clock(void)
{
	struct timespec now;

	SAME(clock_gettime(CLOCK_REALTIME, &now), 0);
	return now.tv_sec * 1000000000ull + now.tv_nsec;
}

static void start(struct ibv_cq_ex *cq)
{
	time_t end = time(NULL) + 20;
	struct ibv_poll_cq_attr attr = {};
	int result;

	while ((result = ibv_start_poll(cq, &attr)) == ENOENT)
		CHECK(time(NULL) < end);
	SAME(result, 0);
}

static void reading(struct ibv_context *context, uint32_t flags)
{
	struct ibv_cq_init_attr_ex attr = {
		.cqe = 64,
		.wc_flags = IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP |
			    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK,
		.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS,
		.flags = flags,
	};
	struct ibv_cq_ex *cq = ibv_create_cq_ex(context, &attr);
	struct end a = {}, b = { .cq = as_cq(cq) };
	struct ibv_sge sge;
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND_WITH_IMM };
	uint64_t raw_before, wall_before, last = 0;
	int i;

	make_pair(&a, &b, context);
	sge = piece(&a, 0, 7);
	raw_before = raw_clock(context);
	wall_before = wall_clock();
	for (i = 0; i < 3; i++)
		post_receive(&b, 100 + i, 64 * i, 64);
	for (i = 0; i < 3; i++) {
		wr.imm_data = htobe32(0x1000 + i);
		sge.length = 7 + i;
		SAME(post(&a, &wr), 0);
	}
	for (i = 0; i < 3; i++)
		success(a.cq);
	/* All are acknowledged, so all have come. */
	usleep(2000);

	start(cq);
	for (i = 0; i < 3; i++) {
		uint64_t raw = ibv_wc_read_completion_ts(cq);
		uint64_t wall = ibv_wc_read_completion_wallclock_ns(cq);

		SAME(cq->status, IBV_WC_SUCCESS);
		SAME(cq->wr_id, 100 + i);
		SAME(ibv_wc_read_opcode(cq), IBV_WC_RECV);
		SAME(ibv_wc_read_vendor_err(cq), 0);
		SAME(ibv_wc_read_byte_len(cq), 7 + i);
		SAME(be32toh(ibv_wc_read_imm_data(cq)), 0x1000 + i);
		SAME(ibv_wc_read_qp_num(cq), b.qp->qp_num);
		SAME(ibv_wc_read_wc_flags(cq), IBV_WC_WITH_IMM);
		SAME(ibv_wc_read_slid(cq), 0);
		SAME(ibv_wc_read_sl(cq), 0);
		SAME(ibv_wc_read_dlid_path_bits(cq), 0);
		/* Stamped when it came: at least the two milliseconds ago that this has slept. */
		CHECK(raw > raw_before && raw >= last && raw + 2000000 <= raw_clock(context));
		/* The host's clock may be slewed meanwhile. */
		CHECK(wall + 1000000 > wall_before && wall + 1000000 < wall_clock());
		last = raw;
		SAME(ibv_next_poll(cq), i < 2 ? 0 : ENOENT);
	}
	ibv_end_poll(cq);
	free_end(&a);
	free_end(&b);
}

static void errors_are_read(struct ibv_context *context)
{
	struct ibv_cq_init_attr_ex attr = { .cqe = 64 };
	struct ibv_cq_ex *cq = ibv_create_cq_ex(context, &attr);
	struct end a = { .cq = as_cq(cq) }, b = {};
	struct ibv_qp_attr error = { .qp_state = IBV_QPS_ERR };

	make_pair(&a, &b, context);
	post_receive(&a, 7, 0, 64);
	SAME(ibv_modify_qp(a.qp, &error, IBV_QP_STATE), 0);
	start(cq);
	SAME(cq->wr_id, 7);
	SAME(cq->status, IBV_WC_WR_FLUSH_ERR);
	SAME(ibv_wc_read_qp_num(cq), a.qp->qp_num);
	/* It is without stamps: there is no clock for it. */
	SAME(ibv_wc_read_completion_ts(cq), 0);
	SAME(ibv_next_poll(cq), ENOENT);
	ibv_end_poll(cq);
	free_end(&a);
	free_end(&b);
}

static void overrun_that_is_ignored(struct ibv_context *context)
{
	struct ibv_cq_init_attr_ex attr = {
		.cqe = 2,
		.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS,
		.flags = IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN,
	};
	struct ibv_cq_ex *cq = ibv_create_cq_ex(context, &attr);
	struct end a = { .cq = as_cq(cq) }, b = {};
	struct ibv_sge sge;
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND };
	struct ibv_async_event event;
	int i, polled, last;

	make_pair(&a, &b, context);
	sge = piece(&a, 0, 1);
	for (i = 0; i < 10; i++)
		post_receive(&b, i, 0, 64);
	for (i = 0; i < 10; i++) {
		wr.wr_id = i;
		SAME(post(&a, &wr), 0);
		success(b.cq);
	}
	usleep(20000);
	/* The newest are there, in their order; on a busy host the last may still be under way. */
	for (polled = 0, last = -1; last < 9; polled++) {
		int id = success(a.cq).wr_id;

		CHECK(id > last);
		last = id;
	}
	CHECK(polled < 10);
	fcntl(context->async_fd, F_SETFL, fcntl(context->async_fd, F_GETFL) | O_NONBLOCK);
	MINUS_ONE(ibv_get_async_event(context, &event), EAGAIN);
	exchange(&a, &b);
	free_end(&a);
	free_end(&b);
}

struct poller {
	struct ibv_cq_ex *cq;
	int *left;
	uint64_t sum;
};

/* Polls until all are polled by somebody. */
static void *poll_some(void *argument)
{
	struct poller *poller = argument;
	struct ibv_poll_cq_attr attr = {};
	time_t end = time(NULL) + 60;

	while (__atomic_load_n(poller->left, __ATOMIC_SEQ_CST) > 0) {
		CHECK(time(NULL) < end);
		if (ibv_start_poll(poller->cq, &attr)) {
			/* Whoever has work to do may be waiting for this processor. */
			sched_yield();
			continue;
		}
		do {
			uint64_t id = poller->cq->wr_id;

			SAME(poller->cq->status, IBV_WC_SUCCESS);
			SAME(ibv_wc_read_opcode(poller->cq), IBV_WC_RDMA_WRITE);
			/* No other thread has changed it meanwhile. */
			SAME(poller->cq->wr_id, id);
			poller->sum += id;
			__atomic_sub_fetch(poller->left, 1, __ATOMIC_SEQ_CST);
		} while (!ibv_next_poll(poller->cq));
		ibv_end_poll(poller->cq);
	}
	return NULL;
}

static void several_threads(struct ibv_context *context)
{
	enum { COUNT = 400 };
	struct ibv_cq_init_attr_ex attr = { .cqe = 64 };
	struct ibv_cq_ex *cq = ibv_create_cq_ex(context, &attr);
	int left = COUNT, posted = 0;
	struct poller pollers[2] = { { cq, &left, 0 }, { cq, &left, 0 } };
	struct end a = { .cq = as_cq(cq) }, b = {};
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE };
	pthread_t threads[2];
	int i;

	make_pair(&a, &b, context);
	for (i = 0; i < 2; i++)
		SAME(pthread_create(&threads[i], NULL, poll_some, &pollers[i]), 0);
	while (posted < COUNT) {
		int polled = COUNT - __atomic_load_n(&left, __ATOMIC_SEQ_CST);

		if (posted - polled == 16) {
			sched_yield();
			continue;
		}
		wr.wr_id = ++posted;
		SAME(post(&a, &wr), 0);
	}
	for (i = 0; i < 2; i++)
		SAME(pthread_join(threads[i], NULL), 0);
	SAME(left, 0);
	SAME(pollers[0].sum + pollers[1].sum, (long long)COUNT * (COUNT + 1) / 2);
	free_end(&a);
	free_end(&b);
}

static int readable(int fd)
{
	struct pollfd wait = { .fd = fd, .events = POLLIN };
	int count = poll(&wait, 1, 100);

	CHECK(count >= 0);
	return count;
}

static void resized_and_moderated(struct ibv_context *context)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_modify_cq_attr attr = { .attr_mask = IBV_CQ_ATTR_MODERATE };
	struct end a = {}, b = {};
	struct ibv_cq *found;
	void *word;
	int i;

	CHECK(channel);
	b.cq = ibv_create_cq(context, 2, &word, channel, 0);
	CHECK(b.cq);
	make_pair(&a, &b, context);
	SAME(ibv_resize_cq(b.cq, 32), 0);
	CHECK(b.cq->cqe >= 32);
	SAME(ibv_resize_cq(b.cq, 0), EINVAL);
	SAME(ibv_resize_cq(b.cq, -1), EINVAL);
	SAME(ibv_resize_cq(b.cq, INT32_MAX), EINVAL);
	SAME(ibv_resize_cq(NOTHING(struct ibv_cq), 4), EINVAL);

	attr.moderate.cq_count = 3;
	SAME(ibv_modify_cq(b.cq, &attr), 0);
	SAME(ibv_req_notify_cq(b.cq, 0), 0);
	for (i = 0; i < 3; i++) {
		SAME(readable(channel->fd), 0);
		exchange(&a, &b);
	}
	SAME(readable(channel->fd), 1);
	SAME(ibv_get_cq_event(channel, &found, &word), 0);
	CHECK(found == b.cq && word == (void *)&word);
	ibv_ack_cq_events(b.cq, 1);
	attr.attr_mask = 1 << 5;
	CHECK(ibv_modify_cq(b.cq, &attr) != 0);
	free_end(&a);
	free_end(&b);
	SAME(ibv_destroy_comp_channel(channel), 0);
}

int main(void)
{
	struct ibv_context *context = open_loopback();
	struct ibv_device_attr_ex device;

	SAME(ibv_query_device_ex(context, NULL, &device), 0);
	CHECK(device.completion_timestamp_mask == UINT64_MAX);
	SAME(device.hca_core_clock, 1000000);
	CHECK(device.cq_mod_caps.max_cq_count && device.cq_mod_caps.max_cq_period);
	refusals(context);
	parent_domain(context);
	reading(context, 0);
	reading(context, IBV_CREATE_CQ_ATTR_SINGLE_THREADED);
	errors_are_read(context);
	overrun_that_is_ignored(context);
	several_threads(context);
	resized_and_moderated(context);
	SAME(ibv_close_device(context), 0);
	printf("all as it should be\n");
	return 0;
}
