/* Extended reliable connections: domains, shared receive queues, initiators and targets. */
#include <fcntl.h>

#include "pair.h"

struct queue {
	struct ibv_cq *cq;
	struct ibv_srq *srq;
	uint32_t number;
};

static void make_queue(struct queue *queue, struct ibv_xrcd *xrcd, struct ibv_pd *pd)
{
	struct ibv_srq_init_attr_ex init = {
		.attr = { .max_wr = 8, .max_sge = 2 },
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD |
			     IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ,
		.srq_type = IBV_SRQT_XRC,
		.pd = pd,
		.xrcd = xrcd,
	};

	queue->cq = init.cq = ibv_create_cq(pd->context, 16, NULL, NULL, 0);
	CHECK(queue->cq);
	queue->srq = ibv_create_srq_ex(pd->context, &init);
	CHECK(queue->srq && init.attr.max_wr >= 8 && init.attr.max_sge >= 2);
	SAME(ibv_get_srq_num(queue->srq, &queue->number), 0);
}

static void free_queue(struct queue *queue)
{
	SAME(ibv_destroy_cq(queue->cq), EBUSY);
	SAME(ibv_destroy_srq(queue->srq), 0);
	SAME(ibv_destroy_cq(queue->cq), 0);
}

static void refusals(struct ibv_context *context, struct ibv_xrcd *xrcd, struct ibv_pd *pd)
{
	struct ibv_srq_init_attr_ex init = {
		.attr = { .max_wr = 8, .max_sge = 2 },
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD |
			     IBV_SRQ_INIT_ATTR_XRCD,
		.srq_type = IBV_SRQT_XRC,
		.pd = pd,
		.xrcd = xrcd,
	};
	struct ibv_qp_init_attr_ex target = { .qp_type = IBV_QPT_XRC_RECV };
	struct ibv_qp_open_attr open = {
		.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE,
		.qp_num = 0xffff,
		.xrcd = xrcd,
		.qp_type = IBV_QPT_XRC_RECV,
	};
	struct ibv_srq *basic;
	uint32_t number;

	REFUSED(ibv_create_srq_ex(context, &init), EINVAL);
	init.comp_mask |= IBV_SRQ_INIT_ATTR_CQ;
	REFUSED(ibv_create_srq_ex(context, &init), EINVAL);
	init.srq_type = IBV_SRQT_TM;
	REFUSED(ibv_create_srq_ex(context, &init), EOPNOTSUPP);
	init.comp_mask |= IBV_SRQ_INIT_ATTR_TM;
	REFUSED(ibv_create_srq_ex(context, &init), EOPNOTSUPP);
	init.comp_mask = IBV_SRQ_INIT_ATTR_XRCD;
	REFUSED(ibv_create_srq_ex(context, &init), EINVAL);
	/* One of the other type can be made by this call too. */
	init.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD;
	init.srq_type = IBV_SRQT_BASIC;
	basic = ibv_create_srq_ex(context, &init);
	CHECK(basic);
	SAME(ibv_get_srq_num(basic, &number), EINVAL);
	SAME(ibv_destroy_srq(basic), 0);

	REFUSED(ibv_create_qp_ex(context, &target), EINVAL);
	target.comp_mask = IBV_QP_INIT_ATTR_XRCD;
	REFUSED(ibv_create_qp_ex(context, &target), EINVAL);
	REFUSED(ibv_open_qp(context, &open), EINVAL);
	open.qp_type = IBV_QPT_RC;
	REFUSED(ibv_open_qp(context, &open), EINVAL);
	open.comp_mask = 0;
	REFUSED(ibv_open_qp(context, &open), EINVAL);
}

/* Sends a message to a queue through the initiator, and checks that it arrives there. */
static void send_to(struct end *from, struct queue *to, struct end *memory, const char *text)
{
	struct ibv_sge sge = piece(from, 0, strlen(text)), into = piece(memory, 512, 64);
	struct ibv_recv_wr recv = { .wr_id = to->number, .sg_list = &into, .num_sge = 1 }, *bad;
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND };
	struct ibv_wc wc;

	memcpy(from->buffer, text, sge.length);
	SAME(ibv_post_srq_recv(to->srq, &recv, &bad), 0);
	wr.qp_type.xrc.remote_srqn = to->number;
	SAME(post(from, &wr), 0);
	success(from->cq);
	wc = success(to->cq);
	SAME(wc.wr_id, to->number);
	SAME(wc.byte_len, sge.length);
	CHECK(!memcmp(memory->buffer + 512, text, sge.length));
}

int main(void)
{
	struct ibv_context *context = open_loopback();
	struct ibv_xrcd_init_attr domain = {
		.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
		.fd = -1,
		.oflags = O_CREAT,
	};
	struct ibv_xrcd *xrcd = ibv_open_xrcd(context, &domain);
	struct ibv_qp_init_attr_ex target_init = {
		.qp_type = IBV_QPT_XRC_RECV,
		.comp_mask = IBV_QP_INIT_ATTR_XRCD,
		.xrcd = xrcd,
	};
	struct ibv_qp_open_attr open = {
		.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD |
			     IBV_QP_OPEN_ATTR_TYPE | IBV_QP_OPEN_ATTR_CONTEXT,
		.xrcd = xrcd,
		.qp_type = IBV_QPT_XRC_RECV,
		.qp_context = &domain,
	};
	struct ibv_qp_init_attr_ex init = {
		.cap = { .max_send_wr = 4, .max_send_sge = 1 },
		.qp_type = IBV_QPT_XRC_SEND,
		.comp_mask = IBV_QP_INIT_ATTR_PD,
	};
	struct end from = {}, memory = {};
	struct queue first, second;
	struct ibv_qp *target, *opened, *plain;

	CHECK(xrcd);
	make_end(&from, context);
	make_end(&memory, context);
	refusals(context, xrcd, memory.pd);
	make_queue(&first, xrcd, memory.pd);
	make_queue(&second, xrcd, memory.pd);
	CHECK(first.number != second.number);

	target = ibv_create_qp_ex(context, &target_init);
	CHECK(target && !target->pd && !target->recv_cq);
	SAME(target->qp_type, IBV_QPT_XRC_RECV);
	/* The initiator takes the place of the queue pair that came with the memory. */
	init.pd = from.pd;
	init.send_cq = from.cq;
	plain = from.qp;
	from.qp = ibv_create_qp_ex(context, &init);
	CHECK(from.qp && from.qp->pd == from.pd);
	connect_to(target, from.qp->qp_num);
	connect_to(from.qp, target->qp_num);
	send_to(&from, &first, &memory, "to the first");
	send_to(&from, &second, &memory, "to the second one");

	open.qp_num = target->qp_num;
	opened = ibv_open_qp(context, &open);
	CHECK(opened && opened != target && opened->qp_context == &domain);
	SAME(opened->qp_num, target->qp_num);
	SAME(ibv_close_xrcd(xrcd), EBUSY);
	/* It lives on with its last handle. */
	SAME(ibv_destroy_qp(target), 0);
	send_to(&from, &first, &memory, "still there");
	SAME(ibv_destroy_qp(opened), 0);
	REFUSED(ibv_open_qp(context, &open), EINVAL);

	SAME(ibv_destroy_qp(plain), 0);
	free_end(&from);
	free_queue(&first);
	free_queue(&second);
	free_end(&memory);
	SAME(ibv_close_xrcd(xrcd), 0);
	SAME(ibv_close_device(context), 0);
	printf("all as it should be\n");
	return 0;
}
