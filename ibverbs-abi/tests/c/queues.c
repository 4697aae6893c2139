/* Queues, posting, polling and events, as the man pages have them. */
#include "pair.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>

static struct ibv_context *context;

static void registering(void)
{
	struct ibv_pd *pd = ibv_alloc_pd(context);
	size_t page = 4096;
	char *memory = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_mr *mr;

	CHECK(memory != MAP_FAILED);
	mr = ibv_reg_mr(pd, memory, page, IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr);
	CHECK(mr->context == context && mr->pd == pd && mr->addr == memory);
	SAME(mr->length, page);
	SAME(ibv_dealloc_pd(pd), EBUSY);
	SAME(ibv_dereg_mr(mr), 0);
	SAME(ibv_dereg_mr(mr), EINVAL);
	/* Writing by peers alone is refused, as is what is not there or cannot be written. */
	REFUSED(ibv_reg_mr(pd, memory, page, IBV_ACCESS_REMOTE_WRITE), EINVAL);
	REFUSED(ibv_reg_mr(NOTHING(struct ibv_pd), memory, page, 0), EINVAL);
	CHECK(!mprotect(memory, page, PROT_READ));
	REFUSED(ibv_reg_mr(pd, memory, page, IBV_ACCESS_LOCAL_WRITE), EFAULT);
	mr = ibv_reg_mr(pd, memory, page, IBV_ACCESS_REMOTE_READ);
	CHECK(mr);
	SAME(ibv_dereg_mr(mr), 0);
	CHECK(!munmap(memory + page, page));
	REFUSED(ibv_reg_mr(pd, memory, 2 * page, 0), EFAULT);
	mr = ibv_reg_mr(pd, NULL, SIZE_MAX, IBV_ACCESS_ON_DEMAND | IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr);
	SAME(ibv_dereg_mr(mr), 0);
	CHECK(!munmap(memory, page));
	SAME(ibv_dealloc_pd(pd), 0);
	SAME(ibv_dealloc_pd(pd), EINVAL);
}

static void completion_queues(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_cq *cq, *found;
	void *word;

	CHECK(channel && channel->fd >= 0 && channel->context == context);
	cq = ibv_create_cq(context, 10, &word, channel, 0);
	CHECK(cq && cq->cqe >= 10 && cq->channel == channel && cq->cq_context == &word);
	SAME(ibv_destroy_comp_channel(channel), EBUSY);
	SAME(ibv_resize_cq(cq, 20), 0);
	CHECK(cq->cqe >= 20);
	SAME(ibv_resize_cq(cq, 0), EINVAL);
	SAME(ibv_req_notify_cq(cq, 0), 0);
	SAME(fcntl(channel->fd, F_SETFL, O_NONBLOCK), 0);
	MINUS_ONE(ibv_get_cq_event(channel, &found, &word), EAGAIN);
	SAME(ibv_destroy_cq(cq), 0);
	SAME(ibv_destroy_cq(cq), EINVAL);
	SAME(ibv_destroy_comp_channel(channel), 0);
	REFUSED(ibv_create_cq(context, 0, NULL, NULL, 0), EINVAL);
	REFUSED(ibv_create_cq(context, -1, NULL, NULL, 0), EINVAL);
	REFUSED(ibv_create_cq(context, 1, NULL, NULL, context->num_comp_vectors), EINVAL);
	REFUSED(ibv_create_cq(NOTHING(struct ibv_context), 1, NULL, NULL, 0), EINVAL);
}

/* An event comes by the channel for a message that the receiver sleeps for. */
static void completion_events(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct end a = { 0 }, b = { 0 };
	struct pollfd sleeper;
	struct ibv_cq *found;
	struct ibv_sge sge;
	struct ibv_send_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND };
	void *word;

	b.cq = ibv_create_cq(context, 16, &word, channel, 0);
	make_pair(&a, &b, context);
	post_receive(&b, 2, 0, 64);
	SAME(ibv_req_notify_cq(b.cq, 0), 0);
	sge = piece(&a, 0, 8);
	SAME(post(&a, &wr), 0);
	sleeper = (struct pollfd){ .fd = channel->fd, .events = POLLIN };
	SAME(poll(&sleeper, 1, 20000), 1);
	SAME(ibv_get_cq_event(channel, &found, &word), 0);
	CHECK(found == b.cq && word == &word);
	SAME(success(b.cq).wr_id, 2);
	SAME(success(a.cq).wr_id, 1);
	/* The one event has been taken, and nobody asked for another. */
	SAME(poll(&sleeper, 1, 0), 0);
	ibv_ack_cq_events(b.cq, 1);
	free_end(&a);
	free_end(&b);
	SAME(ibv_destroy_comp_channel(channel), 0);
}

static void posting(void)
{
	struct end a = { 0 }, b = { 0 };
	struct ibv_sge sges[3], *sge = sges;
	struct ibv_send_wr list[2] = { { 0 } }, *bad = NULL;
	struct ibv_recv_wr receive = { 0 }, *bad_receive = NULL;
	struct ibv_wc wc;
	int i;

	make_pair(&a, &b, context);
	/* Inline data of several pieces, with immediate data; it is copied when it is posted. */
	memcpy(a.buffer, "onetwothree", 11);
	sges[0] = piece(&a, 0, 3);
	sges[1] = piece(&a, 3, 3);
	sges[2] = piece(&a, 6, 5);
	list[0] = (struct ibv_send_wr){ .wr_id = 1, .sg_list = sges, .num_sge = 3,
		.opcode = IBV_WR_SEND_WITH_IMM, .imm_data = htobe32(0x12345678),
		.send_flags = IBV_SEND_INLINE };
	post_receive(&b, 2, 1024, 64);
	SAME(post(&a, &list[0]), 0);
	memset(a.buffer, 0, 11);
	wc = success(b.cq);
	SAME(wc.wr_id, 2);
	SAME(wc.opcode, IBV_WC_RECV);
	SAME(wc.byte_len, 11);
	SAME(wc.qp_num, b.qp->qp_num);
	SAME(wc.wc_flags & IBV_WC_WITH_IMM, IBV_WC_WITH_IMM);
	SAME(be32toh(wc.imm_data), 0x12345678);
	CHECK(!memcmp(b.buffer + 1024, "onetwothree", 11));
	wc = success(a.cq);
	SAME(wc.opcode, IBV_WC_SEND);

	/* Of a list the first one that is not taken is told, and those before it are posted. */
	sges[0] = piece(&a, 0, 65);
	list[0] = (struct ibv_send_wr){ .wr_id = 3, .next = &list[1], .opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { (uintptr_t)b.buffer, b.mr->rkey } };
	list[1] = (struct ibv_send_wr){ .wr_id = 4, .opcode = IBV_WR_SEND, .sg_list = sge,
		.num_sge = 1, .send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE };
	SAME(ibv_post_send(a.qp, list, &bad), EINVAL);
	CHECK(bad == &list[1]);
	SAME(success(a.cq).wr_id, 3);
	list[1].send_flags = IBV_SEND_SIGNALED;
	list[1].opcode = 77;
	SAME(ibv_post_send(a.qp, &list[1], &bad), EINVAL);
	list[1].opcode = IBV_WR_SEND;
	list[1].num_sge = 5;
	SAME(ibv_post_send(a.qp, &list[1], &bad), EINVAL);
	list[1].num_sge = -1;
	SAME(ibv_post_send(a.qp, &list[1], &bad), EINVAL);

	/* A full queue says so, and is as it was. */
	for (i = 0; i < 16; i++) {
		receive.wr_id = i;
		SAME(ibv_post_recv(b.qp, &receive, &bad_receive), 0);
	}
	SAME(ibv_post_recv(b.qp, &receive, &bad_receive), ENOMEM);
	CHECK(bad_receive == &receive);

	/* READ and atomics. */
	memcpy(b.buffer, "\1\0\0\0\0\0\0\0", 8);
	sges[0] = piece(&a, 64, 8);
	list[0] = (struct ibv_send_wr){ .wr_id = 5, .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
		.sg_list = sges, .num_sge = 1,
		.wr.atomic = { (uintptr_t)b.buffer, 6, 0, b.mr->rkey } };
	SAME(post(&a, &list[0]), 0);
	SAME(success(a.cq).opcode, IBV_WC_FETCH_ADD);
	SAME(*(uint64_t *)(a.buffer + 64), 1);
	SAME(*(uint64_t *)b.buffer, 7);
	list[0] = (struct ibv_send_wr){ .wr_id = 6, .opcode = IBV_WR_ATOMIC_CMP_AND_SWP,
		.sg_list = sges, .num_sge = 1,
		.wr.atomic = { (uintptr_t)b.buffer, 7, 9, b.mr->rkey } };
	SAME(post(&a, &list[0]), 0);
	SAME(success(a.cq).opcode, IBV_WC_COMP_SWAP);
	SAME(*(uint64_t *)b.buffer, 9);
	list[0] = (struct ibv_send_wr){ .wr_id = 7, .opcode = IBV_WR_RDMA_READ, .sg_list = sges,
		.num_sge = 1, .wr.rdma = { (uintptr_t)b.buffer, b.mr->rkey } };
	SAME(post(&a, &list[0]), 0);
	SAME(success(a.cq).opcode, IBV_WC_RDMA_READ);
	SAME(*(uint64_t *)(a.buffer + 64), 9);

	/* A wrong key ends the connection: an error, and a flush of what follows. */
	list[0].wr.rdma.rkey ^= 0xff00;
	list[0].next = NULL;
	SAME(post(&a, &list[0]), 0);
	SAME(completion(a.cq).status, IBV_WC_REM_ACCESS_ERR);
	SAME(post(&a, &list[0]), 0);
	SAME(completion(a.cq).status, IBV_WC_WR_FLUSH_ERR);
	free_end(&a);
	free_end(&b);
}

/* An acknowledged event lets an object go; that of a queue pair whose peer was refused. */
static void async_events(void)
{
	struct end a = { 0 }, b = { 0 };
	struct ibv_async_event event;
	struct ibv_sge sge;
	struct ibv_send_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1,
		.opcode = IBV_WR_RDMA_WRITE };
	struct pollfd sleeper = { .fd = context->async_fd, .events = POLLIN };
	int seen = 0;

	make_pair(&a, &b, context);
	sge = piece(&a, 0, 8);
	wr.wr.rdma.remote_addr = (uintptr_t)b.buffer;
	wr.wr.rdma.rkey = b.mr->rkey ^ 0xff00;
	SAME(post(&a, &wr), 0);
	SAME(completion(a.cq).status, IBV_WC_REM_ACCESS_ERR);
	while (!seen) {
		SAME(poll(&sleeper, 1, 20000), 1);
		SAME(ibv_get_async_event(context, &event), 0);
		seen = event.event_type == IBV_EVENT_QP_ACCESS_ERR && event.element.qp == b.qp;
		ibv_ack_async_event(&event);
	}
	free_end(&a);
	free_end(&b);
	SAME(fcntl(context->async_fd, F_SETFL, O_NONBLOCK), 0);
	/* What is left is about queue pairs that are gone, so it is not told. */
	MINUS_ONE(ibv_get_async_event(context, &event), EAGAIN);
	SAME(fcntl(context->async_fd, F_SETFL, 0), 0);
}

static void queue_pairs(void)
{
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, NULL, 0);
	struct ibv_qp_init_attr init = { .qp_context = &cq, .send_cq = cq, .recv_cq = cq,
		.cap = { 3, 4, 2, 1, 10 }, .qp_type = IBV_QPT_UD }, found;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 7,
		.path_mtu = 99 };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	union ibv_gid group = { .raw = { 0xff, 0x0e, [15] = 1 } };
	struct ibv_recv_wr receive = { 0 }, *bad;

	CHECK(qp);
	SAME(qp->state, IBV_QPS_RESET);
	CHECK(qp->qp_context == &cq && qp->send_cq == cq && qp->pd == pd && !qp->srq);
	CHECK(init.cap.max_send_wr >= 3 && init.cap.max_inline_data >= 10);
	SAME(ibv_post_recv(qp, &receive, &bad), EINVAL);
	SAME(ibv_destroy_cq(cq), EBUSY);
	SAME(ibv_dealloc_pd(pd), EBUSY);
	/* A field that the mask does not name is not looked at. */
	SAME(ibv_modify_qp(qp, &attr, IBV_QP_STATE), EINVAL);
	SAME(qp->state, IBV_QPS_RESET);
	SAME(ibv_modify_qp(qp, &attr,
			   IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY), 0);
	SAME(qp->state, IBV_QPS_INIT);
	memset(&attr, 0, sizeof(attr));
	SAME(ibv_query_qp(qp, &attr, IBV_QP_STATE | IBV_QP_QKEY, &found), 0);
	SAME(attr.qp_state, IBV_QPS_INIT);
	SAME(attr.qkey, 7);
	CHECK(found.send_cq == cq && found.qp_type == IBV_QPT_UD && found.qp_context == &cq);
	CHECK(!memcmp(&found.cap, &init.cap, sizeof(found.cap)));
	SAME(ibv_attach_mcast(qp, &group, 0), 0);
	SAME(ibv_destroy_qp(qp), EBUSY);
	SAME(ibv_detach_mcast(qp, &group, 0), 0);
	SAME(ibv_detach_mcast(qp, &group, 0), EINVAL);
	SAME(ibv_destroy_qp(qp), 0);
	SAME(ibv_destroy_qp(qp), EINVAL);
	SAME(ibv_modify_qp(qp, &attr, IBV_QP_STATE), EINVAL);
	init.qp_type = IBV_QPT_RAW_PACKET;
	REFUSED(ibv_create_qp(pd, &init), EOPNOTSUPP);
	init.qp_type = IBV_QPT_RC;
	init.cap.max_send_sge = 1000000;
	REFUSED(ibv_create_qp(pd, &init), EINVAL);
	init.send_cq = NULL;
	REFUSED(ibv_create_qp(pd, &init), EINVAL);
	SAME(ibv_destroy_cq(cq), 0);
	SAME(ibv_dealloc_pd(pd), 0);
}

static void shared_receive_queues(void)
{
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_srq_init_attr init = { .srq_context = &pd, .attr = { 8, 2, 999 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &init);
	struct ibv_srq_attr attr;
	struct ibv_recv_wr list[9] = { { 0 } }, *bad = NULL;
	int i;

	CHECK(srq && srq->srq_context == &pd && srq->pd == pd && srq->context == context);
	CHECK(init.attr.max_wr >= 8 && init.attr.max_sge >= 2);
	SAME(ibv_query_srq(srq, &attr), 0);
	SAME(attr.srq_limit, 0);
	SAME(attr.max_wr, init.attr.max_wr);
	for (i = 0; i < 9; i++)
		list[i].next = i < 8 ? &list[i + 1] : NULL;
	if (attr.max_wr == 8) {
		SAME(ibv_post_srq_recv(srq, list, &bad), ENOMEM);
		CHECK(bad == &list[8]);
	}
	attr.srq_limit = 3;
	SAME(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT), 0);
	SAME(ibv_query_srq(srq, &attr), 0);
	SAME(attr.srq_limit, 3);
	SAME(ibv_modify_srq(srq, &attr, 1 << 7), EINVAL);
	SAME(ibv_dealloc_pd(pd), EBUSY);
	SAME(ibv_destroy_srq(srq), 0);
	SAME(ibv_destroy_srq(srq), EINVAL);
	SAME(ibv_dealloc_pd(pd), 0);
}

static void addresses(void)
{
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_ah_attr attr = { .port_num = 1, .is_global = 1 };
	struct ibv_ah *ah;

	attr.grh.sgid_index = gid_of_host(context, &attr.grh.dgid);
	ah = ibv_create_ah(pd, &attr);
	CHECK(ah && ah->pd == pd);
	SAME(ibv_dealloc_pd(pd), EBUSY);
	SAME(ibv_destroy_ah(ah), 0);
	SAME(ibv_destroy_ah(ah), EINVAL);
	attr.is_global = 0;
	REFUSED(ibv_create_ah(pd, &attr), EINVAL);
	attr.is_global = 1;
	attr.port_num = 9;
	REFUSED(ibv_create_ah(pd, &attr), EINVAL);
	SAME(ibv_dealloc_pd(pd), 0);
}

static void queries(void)
{
	struct ibv_port_attr port;
	struct ibv_gid_entry entries[300];
	struct ibv_device_attr device;
	struct ibv_device_attr_ex device_ex;
	union ibv_gid gid;
	__be16 pkey;
	ssize_t count;

	SAME(ibv_query_device(context, &device), 0);
	SAME(device.phys_port_cnt, 1);
	SAME(ibv_query_device_ex(context, NULL, &device_ex), 0);
	/* All but the padding at the end. */
	CHECK(!memcmp(&device, &device_ex.orig_attr,
		      offsetof(struct ibv_device_attr, phys_port_cnt) + 1));
	CHECK(device_ex.odp_caps.general_caps & IBV_ODP_SUPPORT_IMPLICIT);
	SAME(ibv_query_device(NOTHING(struct ibv_context), &device), EINVAL);
	SAME(ibv_query_port(context, 1, &port), 0);
	SAME(port.state, IBV_PORT_ACTIVE);
	SAME(port.link_layer, IBV_LINK_LAYER_ETHERNET);
	SAME(ibv_query_port(context, 2, &port), EINVAL);
	MINUS_ONE(ibv_query_gid(context, 1, -1, &gid), EINVAL);
	MINUS_ONE(ibv_query_gid(context, 1, 1 << 20, &gid), EINVAL);
	SAME(ibv_query_gid_ex(context, 1, port.gid_tbl_len - 1, entries, 0), ENODATA);
	SAME(ibv_query_gid_ex(context, 1, 0, entries, 1), EINVAL);
	count = ibv_query_gid_table(context, entries, 300, 0);
	CHECK(count > 0);
	SAME(ibv_query_gid_table(context, entries, 0, 0), -EINVAL);
	SAME(ibv_query_gid(context, 1, entries[0].gid_index, &gid), 0);
	CHECK(!memcmp(&gid, &entries[0].gid, sizeof(gid)));
	SAME(ibv_query_pkey(context, 1, 0, &pkey), 0);
	SAME(be16toh(pkey), 0xffff);
	MINUS_ONE(ibv_query_pkey(context, 1, 1, &pkey), EINVAL);
	SAME(ibv_get_pkey_index(context, 1, htobe16(0xffff)), 0);
	MINUS_ONE(ibv_get_pkey_index(context, 1, htobe16(0x1234)), EINVAL);
}

int main(void)
{
	context = open_loopback();
	queries();
	registering();
	completion_queues();
	completion_events();
	posting();
	async_events();
	queue_pairs();
	shared_receive_queues();
	addresses();
	SAME(ibv_close_device(context), 0);
	MINUS_ONE(ibv_close_device(context), EINVAL);
	printf("all as it should be\n");
	return 0;
}
