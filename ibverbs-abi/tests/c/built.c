/* Requests that are put together call by call (ibv_wr_post(3)). */
#include "pair.h"

static struct ibv_context *context;

/* As ibv_create_qp, with all operations that an RC queue pair can have. */
static void make_built_end(struct end *end, enum ibv_qp_type type)
{
	struct ibv_qp_init_attr_ex init = {
		.cap = { 4, 16, 2, 2, 32 },
		.qp_type = type,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM,
	};

	make_end(end, context);
	SAME(ibv_destroy_qp(end->qp), 0);
	init.send_cq = init.recv_cq = end->cq;
	init.pd = end->pd;
	if (type == IBV_QPT_RC)
		init.send_ops_flags |= IBV_QP_EX_WITH_RDMA_WRITE |
			IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ |
			IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
	end->qp = ibv_create_qp_ex(context, &init);
	CHECK(end->qp);
	CHECK(init.cap.max_send_wr >= 4 && init.cap.max_inline_data >= 32);
}

static void reliable(void)
{
	struct end a = { 0 }, b = { 0 };
	struct ibv_qp_ex *qp;
	struct ibv_data_buf pieces[2];
	struct ibv_sge sges[3];
	struct ibv_wc wc;
	uint64_t *result;
	int i;

	make_built_end(&a, IBV_QPT_RC);
	make_built_end(&b, IBV_QPT_RC);
	connect_to(a.qp, b.qp->qp_num);
	connect_to(b.qp, a.qp->qp_num);
	qp = ibv_qp_to_qp_ex(a.qp);
	CHECK(qp);
	post_receive(&b, 100, 1024, 64);
	post_receive(&b, 101, 2048, 64);

	/* Nothing happens before the session is complete. */
	memcpy(a.buffer, "abcdefgh", 8);
	ibv_wr_start(qp);
	qp->wr_id = 1;
	qp->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_send_imm(qp, htobe32(77));
	ibv_wr_set_sge(qp, a.mr->lkey, (uintptr_t)a.buffer, 8);
	qp->wr_id = 2;
	ibv_wr_rdma_write_imm(qp, b.mr->rkey, (uintptr_t)b.buffer, htobe32(78));
	pieces[0] = (struct ibv_data_buf){ a.buffer + 4, 4 };
	pieces[1] = (struct ibv_data_buf){ a.buffer, 4 };
	ibv_wr_set_inline_data_list(qp, 2, pieces);
	SAME(ibv_poll_cq(a.cq, 1, &wc), 0);
	SAME(ibv_wr_complete(qp), 0);
	wc = success(b.cq);
	SAME(wc.wr_id, 100);
	SAME(be32toh(wc.imm_data), 77);
	CHECK(!memcmp(b.buffer + 1024, "abcdefgh", 8));
	wc = success(b.cq);
	SAME(wc.wr_id, 101);
	SAME(wc.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
	SAME(be32toh(wc.imm_data), 78);
	CHECK(!memcmp(b.buffer, "efghabcd", 8));
	SAME(success(a.cq).wr_id, 1);
	SAME(success(a.cq).wr_id, 2);

	/* READ and atomics, each into a list of pieces. */
	result = (uint64_t *)(a.buffer + 512);
	*(uint64_t *)b.buffer = 5;
	ibv_wr_start(qp);
	qp->wr_id = 3;
	ibv_wr_atomic_fetch_add(qp, b.mr->rkey, (uintptr_t)b.buffer, 2);
	ibv_wr_set_sge(qp, a.mr->lkey, (uintptr_t)&result[0], 8);
	qp->wr_id = 4;
	ibv_wr_atomic_cmp_swp(qp, b.mr->rkey, (uintptr_t)b.buffer, 7, 11);
	ibv_wr_set_sge(qp, a.mr->lkey, (uintptr_t)&result[1], 8);
	qp->wr_id = 5;
	ibv_wr_rdma_read(qp, b.mr->rkey, (uintptr_t)b.buffer);
	sges[0] = (struct ibv_sge){ (uintptr_t)&result[2], 3, a.mr->lkey };
	sges[1] = (struct ibv_sge){ (uintptr_t)&result[2] + 3, 5, a.mr->lkey };
	ibv_wr_set_sge_list(qp, 2, sges);
	SAME(ibv_wr_complete(qp), 0);
	for (i = 3; i < 6; i++)
		SAME(success(a.cq).wr_id, i);
	SAME(result[0], 5);
	SAME(result[1], 7);
	SAME(result[2], 11);

	/* What is aborted is forgotten; what is wrong is told at the end, and nothing is posted. */
	ibv_wr_start(qp);
	ibv_wr_rdma_write(qp, b.mr->rkey, (uintptr_t)b.buffer);
	ibv_wr_set_inline_data(qp, "x", 1);
	ibv_wr_abort(qp);
	ibv_wr_start(qp);
	ibv_wr_rdma_write(qp, b.mr->rkey, (uintptr_t)b.buffer);
	ibv_wr_set_inline_data(qp, "y", 1);
	ibv_wr_rdma_write(qp, b.mr->rkey, (uintptr_t)b.buffer);
	ibv_wr_set_inline_data(qp, a.buffer, 33);
	SAME(ibv_wr_complete(qp), EINVAL);
	ibv_wr_start(qp);
	ibv_wr_rdma_write(qp, b.mr->rkey, (uintptr_t)b.buffer);
	ibv_wr_set_sge_list(qp, 3, sges);
	SAME(ibv_wr_complete(qp), EINVAL);
	ibv_wr_start(qp);
	for (i = 0; i < 5; i++)
		ibv_wr_rdma_write(qp, b.mr->rkey, (uintptr_t)b.buffer);
	SAME(ibv_wr_complete(qp), ENOMEM);
	ibv_wr_start(qp);
	qp->wr_id = 6;
	ibv_wr_rdma_read(qp, b.mr->rkey, (uintptr_t)b.buffer);
	ibv_wr_set_sge(qp, a.mr->lkey, (uintptr_t)&result[3], 8);
	SAME(ibv_wr_complete(qp), 0);
	SAME(success(a.cq).wr_id, 6);
	SAME(result[3], 11);
	exchange(&b, &a);
	free_end(&a);
	free_end(&b);
}

static void datagrams(void)
{
	struct end a = { 0 }, b = { 0 };
	struct ibv_ah_attr address = { .port_num = 1, .is_global = 1 };
	struct ibv_qp_attr attr = { .port_num = 1, .qkey = 0x1234 };
	struct end *ends[] = { &a, &b };
	struct ibv_ah *ah;
	struct ibv_qp_ex *qp;
	struct ibv_wc wc;
	unsigned int i;

	make_built_end(&a, IBV_QPT_UD);
	make_built_end(&b, IBV_QPT_UD);
	for (i = 0; i < 2; i++) {
		attr.qp_state = IBV_QPS_INIT;
		SAME(ibv_modify_qp(ends[i]->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX |
				   IBV_QP_PORT | IBV_QP_QKEY), 0);
		attr.qp_state = IBV_QPS_RTR;
		SAME(ibv_modify_qp(ends[i]->qp, &attr, IBV_QP_STATE), 0);
		attr.qp_state = IBV_QPS_RTS;
		SAME(ibv_modify_qp(ends[i]->qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN), 0);
	}
	address.grh.sgid_index = gid_of_host(context, &address.grh.dgid);
	ah = ibv_create_ah(a.pd, &address);
	CHECK(ah);
	post_receive(&b, 9, 0, 40 + 64);
	qp = ibv_qp_to_qp_ex(a.qp);
	CHECK(qp);
	ibv_wr_start(qp);
	qp->wr_id = 8;
	qp->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_send_imm(qp, htobe32(5));
	ibv_wr_set_ud_addr(qp, ah, b.qp->qp_num, 0x1234);
	ibv_wr_set_inline_data(qp, "datagram", 8);
	SAME(ibv_wr_complete(qp), 0);
	SAME(success(a.cq).wr_id, 8);
	wc = success(b.cq);
	SAME(wc.byte_len, 48);
	SAME(wc.src_qp, a.qp->qp_num);
	SAME(wc.wc_flags, IBV_WC_GRH | IBV_WC_WITH_IMM);
	CHECK(!memcmp(b.buffer + 40, "datagram", 8));
	/* The way back, by the header before the data. */
	SAME(ibv_destroy_ah(ah), 0);
	ah = ibv_create_ah_from_wc(b.pd, &wc, (struct ibv_grh *)b.buffer, 1);
	CHECK(ah);
	SAME(ibv_destroy_ah(ah), 0);
	wc.wc_flags = 0;
	REFUSED(ibv_create_ah_from_wc(b.pd, &wc, (struct ibv_grh *)b.buffer, 1), EINVAL);
	/* A datagram without an address, or by a builder that the service does not have. */
	ibv_wr_start(qp);
	ibv_wr_send(qp);
	SAME(ibv_wr_complete(qp), EINVAL);
	ibv_wr_start(qp);
	ibv_wr_rdma_write(qp, b.mr->rkey, (uintptr_t)b.buffer);
	SAME(ibv_wr_complete(qp), EINVAL);
	free_end(&a);
	free_end(&b);
}

static void refusals(void)
{
	struct end a = { 0 };
	struct ibv_qp_init_attr_ex init = { .cap = { 1, 1, 1, 1, 0 }, .qp_type = IBV_QPT_UD };

	make_end(&a, context);
	/* One that was made without send_ops_flags has nothing to build with. */
	CHECK(!ibv_qp_to_qp_ex(a.qp));
	init.send_cq = init.recv_cq = a.cq;
	init.pd = a.pd;
	init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	init.send_ops_flags = IBV_QP_EX_WITH_RDMA_READ;
	REFUSED(ibv_create_qp_ex(context, &init), EOPNOTSUPP);
	init.send_ops_flags = IBV_QP_EX_WITH_SEND;
	init.comp_mask |= IBV_QP_INIT_ATTR_MAX_TSO_HEADER;
	REFUSED(ibv_create_qp_ex(context, &init), EOPNOTSUPP);
	init.comp_mask = IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	REFUSED(ibv_create_qp_ex(context, &init), EINVAL);
	free_end(&a);
}

int main(void)
{
	context = open_loopback();
	reliable();
	datagrams();
	refusals();
	SAME(ibv_close_device(context), 0);
	printf("all as it should be\n");
	return 0;
}
