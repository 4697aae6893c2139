/* Two queue pairs of one process, connected to each other. */
#ifndef PAIR_H
#define PAIR_H

#include "check.h"

#include <stdint.h>
#include <time.h>

#define BUFFER 8192

struct end {
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	char *buffer;
};

/* All access that a peer can have. */
#define ALL_ACCESS \
	(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | \
	 IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND)

/* The first GID that is an address of the host. */
static inline int gid_of_host(struct ibv_context *context, union ibv_gid *gid)
{
	struct ibv_gid_entry entry;
	int index;

	for (index = 0; index < 256; index++) {
		static const unsigned char v4[12] = { [10] = 0xff, [11] = 0xff };

		if (!ibv_query_gid_ex(context, 1, index, &entry, 0) &&
		    !memcmp(entry.gid.raw, v4, sizeof(v4))) {
			*gid = entry.gid;
			return index;
		}
	}
	CHECK(!"no IPv4 address");
	return -1;
}

static inline void make_end(struct end *end, struct ibv_context *context)
{
	struct ibv_qp_init_attr init = {
		.cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 4, .max_recv_sge = 4,
			 .max_inline_data = 64 },
		.qp_type = IBV_QPT_RC,
	};

	end->pd = ibv_alloc_pd(context);
	CHECK(end->pd);
	if (!end->cq)
		end->cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	CHECK(end->cq);
	init.send_cq = init.recv_cq = end->cq;
	end->qp = ibv_create_qp(end->pd, &init);
	CHECK(end->qp);
	end->buffer = aligned_alloc(4096, BUFFER);
	CHECK(end->buffer);
	memset(end->buffer, 0, BUFFER);
	end->mr = ibv_reg_mr(end->pd, end->buffer, BUFFER, ALL_ACCESS);
	CHECK(end->mr);
}

static inline void connect_to(struct ibv_qp *qp, uint32_t peer)
{
	/* What only those have that answer requests, and those that make them. */
	int answers = IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	int asks = IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = ALL_ACCESS & ~IBV_ACCESS_MW_BIND,
	};

	SAME(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
			   IBV_QP_ACCESS_FLAGS), 0);
	memset(&attr, 0, sizeof(attr));
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = IBV_MTU_1024;
	attr.dest_qp_num = peer;
	attr.max_dest_rd_atomic = 4;
	attr.min_rnr_timer = 12;
	attr.ah_attr.is_global = 1;
	attr.ah_attr.port_num = 1;
	attr.ah_attr.grh.hop_limit = 64;
	attr.ah_attr.grh.sgid_index = gid_of_host(qp->context, &attr.ah_attr.grh.dgid);
	SAME(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
			   IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			   (qp->qp_type == IBV_QPT_XRC_SEND ? 0 : answers)), 0);
	memset(&attr, 0, sizeof(attr));
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 14;
	attr.retry_cnt = 7;
	attr.rnr_retry = 7;
	attr.max_rd_atomic = 4;
	SAME(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_SQ_PSN |
			   (qp->qp_type == IBV_QPT_XRC_RECV ? 0 : asks)), 0);
}

static inline void make_pair(struct end *a, struct end *b, struct ibv_context *context)
{
	make_end(a, context);
	make_end(b, context);
	connect_to(a->qp, b->qp->qp_num);
	connect_to(b->qp, a->qp->qp_num);
}

static inline void free_end(struct end *end)
{
	SAME(ibv_destroy_qp(end->qp), 0);
	SAME(ibv_destroy_cq(end->cq), 0);
	SAME(ibv_dereg_mr(end->mr), 0);
	SAME(ibv_dealloc_pd(end->pd), 0);
	free(end->buffer);
}

static inline struct ibv_sge piece(const struct end *end, unsigned int at, unsigned int length)
{
	return (struct ibv_sge){ (uintptr_t)end->buffer + at, length, end->mr->lkey };
}

/* Polls until a completion comes. */
static inline struct ibv_wc completion(struct ibv_cq *cq)
{
	time_t end = time(NULL) + 60;
	struct ibv_wc wc;
	int count;

	while (!(count = ibv_poll_cq(cq, 1, &wc)))
		CHECK(time(NULL) < end);
	SAME(count, 1);
	return wc;
}

/* Polls until a completion comes, which must be a success. */
static inline struct ibv_wc success(struct ibv_cq *cq)
{
	struct ibv_wc wc = completion(cq);

	if (wc.status)
		fprintf(stderr, "status %s\n", ibv_wc_status_str(wc.status));
	SAME(wc.status, IBV_WC_SUCCESS);
	return wc;
}

static inline void post_receive(struct end *end, uint64_t id, unsigned int at, unsigned int length)
{
	struct ibv_sge sge = piece(end, at, length);
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1 }, *bad;

	SAME(ibv_post_recv(end->qp, &wr, &bad), 0);
}

/* Posts one request, signaled. */
static inline int post(struct end *end, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;

	wr->send_flags |= IBV_SEND_SIGNALED;
	return ibv_post_send(end->qp, wr, &bad);
}

/* Sends a message from the one to the other, and checks that it arrives. */
static inline void exchange(struct end *from, struct end *to)
{
	struct ibv_sge sge = piece(from, 0, 5);
	struct ibv_send_wr wr = { .wr_id = 5, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND };

	memcpy(from->buffer, "hello", 5);
	memset(to->buffer + 512, 0, 5);
	post_receive(to, 6, 512, 64);
	SAME(post(from, &wr), 0);
	SAME(success(to->cq).wr_id, 6);
	SAME(success(from->cq).wr_id, 5);
	CHECK(!memcmp(to->buffer + 512, "hello", 5));
}

#endif
