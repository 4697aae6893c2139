/* Programs that were built against older headers: their structs end sooner, and nothing beyond is
 * read or written. What goes back to a program is what the man pages say, and no more. */
#include <fcntl.h>
#include <stddef.h>
#include <sys/mman.h>

#include "pair.h"

#define PAGE 4096

/* Memory of `size` bytes, with nothing behind. */
static void *at_the_end(size_t size)
{
	char *pages = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(pages != MAP_FAILED && !munmap(pages + PAGE, PAGE));
	return pages + PAGE - size;
}

static struct ibv_cq *old_queue(struct ibv_context *context)
{
	struct ibv_cq_init_attr_ex *attr =
		at_the_end(offsetof(struct ibv_cq_init_attr_ex, parent_domain));
	struct ibv_cq_ex *cq;

	attr->cqe = 16;
	attr->wc_flags = IBV_WC_EX_WITH_BYTE_LEN;
	attr->comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS;
	cq = ibv_create_cq_ex(context, attr);
	CHECK(cq);
	return ibv_cq_ex_to_cq(cq);
}

static void old_queue_pair(struct ibv_pd *pd, struct ibv_cq *cq)
{
	/* As when create_flags was new. */
	struct ibv_qp_init_attr_ex *attr =
		at_the_end(offsetof(struct ibv_qp_init_attr_ex, rwq_ind_tbl));
	struct ibv_qp *qp;

	attr->send_cq = attr->recv_cq = cq;
	attr->cap.max_send_wr = attr->cap.max_send_sge = 1;
	attr->qp_type = IBV_QPT_RC;
	attr->comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS;
	attr->pd = pd;
	qp = ibv_create_qp_ex(pd->context, attr);
	CHECK(qp && attr->cap.max_send_wr >= 1);
	SAME(ibv_destroy_qp(qp), 0);
}

static void old_shared_receive_queue(struct ibv_pd *pd, struct ibv_cq *cq)
{
	struct ibv_srq_init_attr_ex *attr =
		at_the_end(offsetof(struct ibv_srq_init_attr_ex, tm_cap));
	struct ibv_xrcd_init_attr domain = {
		.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
		.fd = -1,
		.oflags = O_CREAT,
	};
	struct ibv_srq *srq;

	attr->attr.max_wr = attr->attr.max_sge = 1;
	attr->comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD |
			  IBV_SRQ_INIT_ATTR_CQ;
	attr->srq_type = IBV_SRQT_XRC;
	attr->pd = pd;
	attr->cq = cq;
	attr->xrcd = ibv_open_xrcd(pd->context, &domain);
	CHECK(attr->xrcd);
	srq = ibv_create_srq_ex(pd->context, attr);
	CHECK(srq && attr->attr.max_wr >= 1);
	SAME(ibv_destroy_srq(srq), 0);
	SAME(ibv_close_xrcd(attr->xrcd), 0);
}

/* verbs.h takes the plain calls where nothing more is asked for: their structs end where comp_mask
 * is. A program makes many from one. */
static void one_for_many(struct ibv_pd *pd, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr_ex qp = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = 1, .max_send_sge = 1 },
		.qp_type = IBV_QPT_RC,
		.comp_mask = IBV_QP_INIT_ATTR_PD,
		.pd = pd,
	};
	struct ibv_srq_init_attr_ex srq = {
		.attr = { .max_wr = 1, .max_sge = 1, .srq_limit = 77 },
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD,
		.srq_type = IBV_SRQT_BASIC,
		.pd = pd,
	};
	int i;

	for (i = 0; i < 3; i++) {
		struct ibv_qp *one = ibv_create_qp_ex(pd->context, &qp);
		struct ibv_srq *other = ibv_create_srq_ex(pd->context, &srq);

		CHECK(one && other);
		SAME(qp.comp_mask, IBV_QP_INIT_ATTR_PD);
		SAME(srq.comp_mask, IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD);
		SAME(srq.attr.srq_limit, 77);
		SAME(ibv_destroy_qp(one), 0);
		SAME(ibv_destroy_srq(other), 0);
	}
}

int main(void)
{
	struct ibv_context *context = open_loopback();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = old_queue(context);

	CHECK(pd);
	old_queue_pair(pd, cq);
	old_shared_receive_queue(pd, cq);
	one_for_many(pd, cq);
	SAME(ibv_destroy_cq(cq), 0);
	SAME(ibv_dealloc_pd(pd), 0);
	SAME(ibv_close_device(context), 0);
	printf("all as it should be\n");
	return 0;
}
