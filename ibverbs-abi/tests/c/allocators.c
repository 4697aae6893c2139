/* Parent domains with allocators: objects are made in memory of the program. */
#include "pair.h"

#define MEMORY 65536
#define MAGIC ((void *)0x1234)

static struct ibv_pd *domain;
static char *memory;
static size_t used;
static int taken, given_back;
static enum { GIVE, NOTHING_LEFT, DEFAULT, SKEWED } answer;

static void *give(struct ibv_pd *pd, void *word, size_t size, size_t alignment, uint64_t type)
{
	size_t at = (used + alignment - 1) / alignment * alignment;

	CHECK(pd == domain && word == MAGIC && size && type);
	CHECK(alignment && !(alignment & (alignment - 1)));
	if (answer == NOTHING_LEFT)
		return NULL;
	if (answer == DEFAULT)
		return IBV_ALLOCATOR_USE_DEFAULT;
	CHECK(at + size <= MEMORY);
	used = at + size;
	taken++;
	return memory + at + (answer == SKEWED);
}

static void take_back(struct ibv_pd *pd, void *word, void *from, uint64_t type)
{
	CHECK(pd == domain && word == MAGIC && type);
	CHECK((char *)from >= memory && (char *)from < memory + MEMORY);
	given_back++;
}

static struct ibv_qp *make_qp(struct ibv_context *context, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr_ex init = {
		.send_cq = cq,
		.recv_cq = cq,
		.pd = domain,
		.cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 4, .max_recv_sge = 4,
			 .max_inline_data = 64 },
		.qp_type = IBV_QPT_RC,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_SEND,
	};

	return ibv_create_qp_ex(context, &init);
}

static struct ibv_cq_ex *make_cq(struct ibv_context *context)
{
	struct ibv_cq_init_attr_ex init = {
		.cqe = 64,
		.wc_flags = IBV_WC_STANDARD_FLAGS,
		.comp_mask = IBV_CQ_INIT_ATTR_MASK_PD,
		.parent_domain = domain,
	};

	return ibv_create_cq_ex(context, &init);
}

/* Whether what the library keeps in the program's memory has these bytes. */
static int memory_has(const char *text)
{
	size_t i, length = strlen(text);

	for (i = 0; i + length <= used; i++)
		if (!memcmp(memory + i, text, length))
			return 1;
	return 0;
}

/* What is sent comes from the memory that the program gave. */
static void traffic(struct end *a, struct end *b, struct ibv_cq_ex *cq)
{
	struct ibv_sge sges[2] = { piece(a, 0, 8), piece(a, 100, 8) };
	struct ibv_send_wr wr = {
		.wr_id = 5,
		.sg_list = sges,
		.num_sge = 2,
		.opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED,
	}, *bad;
	struct ibv_data_buf pieces[2] = { { a->buffer, 8 }, { a->buffer + 200, 8 } };
	struct ibv_poll_cq_attr poll = {};
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(a->qp);
	int found;

	memcpy(a->buffer, "in two p", 8);
	memcpy(a->buffer + 100, "ieces...", 8);
	memcpy(a->buffer + 200, "built up", 8);
	post_receive(b, 100, 0, 64);
	CHECK(!memory_has("in two pieces..."));
	SAME(ibv_post_send(a->qp, &wr, &bad), 0);
	CHECK(memory_has("in two pieces..."));
	success(b->cq);
	CHECK(!memcmp(b->buffer, "in two pieces...", 16));
	while ((found = ibv_start_poll(cq, &poll)))
		SAME(found, ENOENT);
	SAME(cq->wr_id, 5);
	SAME(cq->status, IBV_WC_SUCCESS);
	SAME(ibv_wc_read_qp_num(cq), a->qp->qp_num);
	ibv_end_poll(cq);

	post_receive(b, 101, 0, 64);
	ibv_wr_start(qp);
	qp->wr_id = 6;
	qp->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_send(qp);
	ibv_wr_set_inline_data_list(qp, 2, pieces);
	SAME(ibv_wr_complete(qp), 0);
	CHECK(memory_has("in two pbuilt up"));
	success(b->cq);
	CHECK(!memcmp(b->buffer, "in two pbuilt up", 16));

	/* As many pieces as were asked for, and not one more. */
	ibv_wr_start(qp);
	ibv_wr_send(qp);
	ibv_wr_set_sge_list(qp, 5, (struct ibv_sge[5]){});
	SAME(ibv_wr_complete(qp), EINVAL);
	ibv_wr_start(qp);
	ibv_wr_send(qp);
	ibv_wr_set_inline_data_list(qp, 2, (struct ibv_data_buf[2]){ { a->buffer, 64 },
								     { a->buffer, SIZE_MAX } });
	SAME(ibv_wr_complete(qp), EINVAL);
}

int main(void)
{
	struct ibv_context *context = open_loopback();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_parent_domain_init_attr attr = {
		.pd = pd,
		.comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS |
			     IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT,
		.alloc = give,
		.pd_context = MAGIC,
	};
	struct end a = {}, b = {};
	struct ibv_cq_ex *cq;

	CHECK(pd);
	memory = aligned_alloc(4096, MEMORY);
	CHECK(memory);
	memset(memory, 0, MEMORY);
	REFUSED(ibv_alloc_parent_domain(context, &attr), EINVAL);
	attr.free = take_back;
	domain = ibv_alloc_parent_domain(context, &attr);
	CHECK(domain);

	answer = NOTHING_LEFT;
	REFUSED(make_cq(context), ENOMEM);
	answer = SKEWED;
	REFUSED(make_cq(context), EINVAL);
	SAME(taken, 1);
	SAME(given_back, 1);
	answer = DEFAULT;
	cq = make_cq(context);
	CHECK(cq);
	SAME(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), 0);
	SAME(taken, 1);

	answer = GIVE;
	cq = make_cq(context);
	CHECK(cq);
	SAME(taken, 2);
	answer = NOTHING_LEFT;
	REFUSED(make_qp(context, ibv_cq_ex_to_cq(cq)), ENOMEM);
	answer = GIVE;
	make_end(&a, context);
	make_end(&b, context);
	SAME(taken, 2);
	SAME(ibv_destroy_qp(a.qp), 0);
	a.qp = make_qp(context, ibv_cq_ex_to_cq(cq));
	CHECK(a.qp && taken > 2);
	SAME(ibv_dereg_mr(a.mr), 0);
	a.mr = ibv_reg_mr(domain, a.buffer, BUFFER, ALL_ACCESS);
	CHECK(a.mr);
	connect_to(a.qp, b.qp->qp_num);
	connect_to(b.qp, a.qp->qp_num);
	traffic(&a, &b, cq);

	SAME(ibv_dealloc_pd(domain), EBUSY);
	free_end(&a);
	free_end(&b);
	SAME(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), 0);
	SAME(given_back, taken);
	SAME(ibv_dealloc_pd(domain), 0);
	SAME(ibv_dealloc_pd(pd), 0);
	free(memory);
	SAME(ibv_close_device(context), 0);
	printf("all as it should be\n");
	return 0;
}
