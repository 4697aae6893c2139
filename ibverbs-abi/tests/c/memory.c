/* Memory windows, invalidation, null regions, regions that change, device memory, advice, imports. */
#include <sys/mman.h>
#include <unistd.h>

#include "pair.h"

/* Writes from the one to an address of the other; gives the status. */
static enum ibv_wc_status write_to(struct end *from, uint64_t addr, uint32_t rkey, const char *text)
{
	struct ibv_sge sge = piece(from, 0, strlen(text));
	struct ibv_send_wr wr = {
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_RDMA_WRITE,
		.wr.rdma = { .remote_addr = addr, .rkey = rkey },
	};

	memcpy(from->buffer, text, sge.length);
	SAME(post(from, &wr), 0);
	return completion(from->cq).status;
}

static void free_queues(struct end *end)
{
	SAME(ibv_destroy_qp(end->qp), 0);
	SAME(ibv_destroy_cq(end->cq), 0);
	end->cq = NULL;
}

static void windows_of_type_1(struct ibv_context *context)
{
	struct end a = {}, b = {};
	struct ibv_mw_bind bind = { .wr_id = 9, .send_flags = IBV_SEND_SIGNALED };
	struct ibv_mw *mw;
	struct ibv_wc wc;
	uint32_t old;

	make_pair(&a, &b, context);
	REFUSED(ibv_alloc_mw(b.pd, 3), EINVAL);
	mw = ibv_alloc_mw(b.pd, IBV_MW_TYPE_1);
	CHECK(mw && mw->pd == b.pd && mw->context == context);
	old = mw->rkey;
	bind.bind_info.mr = b.mr;
	bind.bind_info.addr = (uintptr_t)b.buffer + 100;
	bind.bind_info.length = 10;
	/* The owner's own access means nothing here. */
	bind.bind_info.mw_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_LOCAL_WRITE;
	SAME(ibv_bind_mw(b.qp, mw, &bind), 0);
	SAME(mw->rkey >> 8, old >> 8);
	CHECK(mw->rkey != old);
	wc = success(b.cq);
	SAME(wc.wr_id, 9);
	SAME(wc.opcode, IBV_WC_BIND_MW);
	SAME(ibv_dereg_mr(b.mr), EBUSY);
	SAME(write_to(&a, (uintptr_t)b.buffer + 100, mw->rkey, "0123456789"), IBV_WC_SUCCESS);
	CHECK(!memcmp(b.buffer + 100, "0123456789", 10));

	/* Bound to nothing: its key is good for nothing. */
	memset(&bind.bind_info, 0, sizeof(bind.bind_info));
	SAME(ibv_bind_mw(b.qp, mw, &bind), 0);
	success(b.cq);
	SAME(write_to(&a, (uintptr_t)b.buffer + 100, mw->rkey, "x"), IBV_WC_REM_ACCESS_ERR);
	CHECK(b.buffer[100] == '0');
	bind.send_flags = 1 << 20;
	SAME(ibv_bind_mw(b.qp, mw, &bind), EINVAL);
	SAME(ibv_dealloc_mw(mw), 0);
	free_end(&a);
	free_end(&b);
}

static int bind_type_2(struct end *end, struct ibv_mw *mw, uint32_t rkey, unsigned int access)
{
	struct ibv_send_wr wr = {
		.opcode = IBV_WR_BIND_MW,
		.bind_mw = {
			.mw = mw,
			.rkey = rkey,
			.bind_info = { end->mr, (uintptr_t)end->buffer + 200, 10, access },
		},
	};

	return post(end, &wr);
}

static void windows_of_type_2(struct ibv_context *context)
{
	unsigned int access = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_ZERO_BASED;
	struct ibv_send_wr invalidate = { .opcode = IBV_WR_LOCAL_INV }, inv_send = {};
	struct ibv_mw *mw, *first;
	struct end a = {}, b = {};
	struct ibv_wc wc;
	uint32_t rkey;

	make_pair(&a, &b, context);
	mw = ibv_alloc_mw(b.pd, IBV_MW_TYPE_2);
	first = ibv_alloc_mw(b.pd, IBV_MW_TYPE_1);
	CHECK(mw && first);
	SAME(bind_type_2(&b, NULL, 0, 0), EINVAL);
	SAME(bind_type_2(&b, first, ibv_inc_rkey(first->rkey), access), EINVAL);
	SAME(bind_type_2(&b, mw, ibv_inc_rkey(mw->rkey), 1u << 31), EINVAL);
	SAME(ibv_dealloc_mw(first), 0);

	rkey = ibv_inc_rkey(mw->rkey);
	SAME(bind_type_2(&b, mw, rkey, access), 0);
	SAME(success(b.cq).opcode, IBV_WC_BIND_MW);
	SAME(mw->rkey, rkey);
	SAME(write_to(&a, 3, rkey, "abc"), IBV_WC_SUCCESS);
	CHECK(!memcmp(b.buffer + 203, "abc", 3));

	/* Its owner takes it back, and gives it anew. */
	invalidate.invalidate_rkey = rkey;
	SAME(post(&b, &invalidate), 0);
	SAME(success(b.cq).opcode, IBV_WC_LOCAL_INV);
	rkey = ibv_inc_rkey(mw->rkey);
	SAME(bind_type_2(&b, mw, rkey, access), 0);
	success(b.cq);
	SAME(write_to(&a, 0, rkey, "def"), IBV_WC_SUCCESS);

	/* The peer gives it back. */
	inv_send.opcode = IBV_WR_SEND_WITH_INV;
	inv_send.invalidate_rkey = rkey;
	post_receive(&b, 4, 0, 64);
	SAME(post(&a, &inv_send), 0);
	success(a.cq);
	wc = success(b.cq);
	SAME(wc.wc_flags, IBV_WC_WITH_INV);
	SAME(wc.invalidated_rkey, rkey);
	SAME(write_to(&a, 0, rkey, "ghi"), IBV_WC_REM_ACCESS_ERR);
	CHECK(!memcmp(b.buffer + 200, "def", 3));
	SAME(ibv_dealloc_mw(mw), 0);
	free_end(&a);
	free_end(&b);
}

static void null_regions(struct ibv_context *context)
{
	struct end a = {}, b = {};
	struct ibv_sge sges[2];
	struct ibv_send_wr wr = { .sg_list = sges, .num_sge = 2, .opcode = IBV_WR_SEND };
	struct ibv_mr *null;

	make_pair(&a, &b, context);
	null = ibv_alloc_null_mr(a.pd);
	CHECK(null && null->lkey && !null->addr && null->length == SIZE_MAX);
	sges[0] = (struct ibv_sge){ 12345, 10, null->lkey };
	sges[1] = piece(&a, 0, 3);
	memcpy(a.buffer, "end", 3);
	memset(b.buffer, 'x', 64);
	post_receive(&b, 1, 0, 64);
	SAME(post(&a, &wr), 0);
	success(a.cq);
	SAME(success(b.cq).byte_len, 13);
	CHECK(!memcmp(b.buffer, "\0\0\0\0\0\0\0\0\0\0end", 13));
	MINUS_ONE(ibv_rereg_mr(null, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0), EINVAL);
	SAME(ibv_dereg_mr(null), 0);
	SAME(ibv_dereg_mr(null), EINVAL);
	free_end(&a);
	free_end(&b);
}

static void regions_that_change(struct ibv_context *context)
{
	static char other[4096];
	struct end a = {}, b = {};
	struct ibv_mr *mr;
	struct ibv_pd *pd;
	uint32_t old;

	make_pair(&a, &b, context);
	mr = ibv_reg_mr(a.pd, b.buffer, 64, IBV_ACCESS_LOCAL_WRITE);
	pd = ibv_alloc_pd(context);
	CHECK(mr && pd);
	MINUS_ONE(ibv_rereg_mr(mr, 0, NULL, NULL, 0, 0), EINVAL);
	MINUS_ONE(ibv_rereg_mr(mr, 1 << 6, NULL, NULL, 0, 0), EINVAL);
	MINUS_ONE(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, NULL, 64, 0), EINVAL);
	MINUS_ONE(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, other, 0, 0), EINVAL);
	MINUS_ONE(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, NULL, NULL, 0, 0), EINVAL);
	MINUS_ONE(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, pd, NULL, 0, 1), EINVAL);
	/* Remote access without local one. */
	MINUS_ONE(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0,
			       IBV_ACCESS_REMOTE_WRITE), EINVAL);
	MINUS_ONE(ibv_rereg_mr(NOTHING(struct ibv_mr), IBV_REREG_MR_CHANGE_PD, pd, NULL, 0, 0),
		  EINVAL);

	SAME(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, b.pd, NULL, 0, 0), 0);
	CHECK(mr->pd == b.pd && mr->addr == b.buffer);
	SAME(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, ALL_ACCESS), 0);
	SAME(write_to(&a, (uintptr_t)b.buffer, mr->rkey, "first"), IBV_WC_SUCCESS);
	CHECK(!memcmp(b.buffer, "first", 5));
	old = mr->rkey;
	SAME(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, other, sizeof(other), 0), 0);
	CHECK(mr->addr == other && mr->length == sizeof(other) && mr->rkey != old);
	SAME(write_to(&a, (uintptr_t)other + 7, mr->rkey, "second"), IBV_WC_SUCCESS);
	CHECK(!memcmp(other + 7, "second", 6));
	/* The first domain is free now, the new one is not. */
	SAME(ibv_dealloc_pd(b.pd), EBUSY);
	SAME(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, pd, NULL, 0, 0), 0);
	SAME(ibv_dealloc_pd(pd), EBUSY);
	SAME(write_to(&a, (uintptr_t)other, old, "third"), IBV_WC_REM_ACCESS_ERR);
	SAME(ibv_dereg_mr(mr), 0);
	SAME(ibv_dealloc_pd(pd), 0);
	free_end(&a);
	free_end(&b);
}

static void regions_of_device_memory(struct ibv_context *context)
{
	unsigned int access = ALL_ACCESS | IBV_ACCESS_ZERO_BASED;
	struct ibv_alloc_dm_attr attr = { .length = 256 };
	struct ibv_dm *dm = ibv_alloc_dm(context, &attr);
	struct end a = {}, b = {};
	struct ibv_mr *mr;
	char text[8] = {};

	CHECK(dm);
	make_pair(&a, &b, context);
	REFUSED(ibv_reg_dm_mr(b.pd, dm, 0, 64, ALL_ACCESS), EINVAL);
	REFUSED(ibv_reg_dm_mr(b.pd, dm, 200, 64, access), EINVAL);
	REFUSED(ibv_reg_dm_mr(b.pd, dm, UINT64_MAX, 64, access), EINVAL);
	REFUSED(ibv_reg_dm_mr(b.pd, NULL, 0, 64, access), EINVAL);
	mr = ibv_reg_dm_mr(b.pd, dm, 100, 64, access);
	CHECK(mr && mr->length == 64);
	SAME(write_to(&a, 8, mr->rkey, "device"), IBV_WC_SUCCESS);
	SAME(ibv_memcpy_from_dm(text, dm, 108, 8), 0);
	CHECK(!memcmp(text, "device", 6));
	SAME(ibv_free_dm(dm), EBUSY);
	SAME(write_to(&a, 60, mr->rkey, "beyond"), IBV_WC_REM_ACCESS_ERR);
	SAME(ibv_dereg_mr(mr), 0);
	SAME(ibv_free_dm(dm), 0);
	free_end(&a);
	free_end(&b);
}

static void advice(struct ibv_context *context)
{
	unsigned int on_demand = IBV_ACCESS_ON_DEMAND | IBV_ACCESS_LOCAL_WRITE;
	size_t size = 16 * 4096;
	char *pages = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_pd *pd = ibv_alloc_pd(context), *other = ibv_alloc_pd(context);
	struct ibv_mr *mr = ibv_reg_mr(pd, pages, size, on_demand), *plain, *readable;
	struct ibv_sge sge;
	unsigned char present;

	CHECK(pages != MAP_FAILED && pd && other && mr);
	plain = ibv_reg_mr(pd, pages, 4096, IBV_ACCESS_LOCAL_WRITE);
	readable = ibv_reg_mr(pd, pages, 4096, IBV_ACCESS_ON_DEMAND);
	CHECK(plain && readable);
	sge = (struct ibv_sge){ (uintptr_t)pages + 8 * 4096, 4096, mr->lkey };
	SAME(mincore(pages + 8 * 4096, 4096, &present), 0);
	SAME(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT, 0, &sge, 1), 0);
	SAME(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, IBV_ADVISE_MR_FLAG_FLUSH, &sge,
			   1), 0);
	SAME(mincore(pages + 8 * 4096, 4096, &present), 0);
	CHECK(present & 1);
	SAME(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 1 << 5, &sge, 1), EINVAL);
	SAME(ibv_advise_mr(pd, 77, 0, &sge, 1), EOPNOTSUPP);
	SAME(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, NULL, 1), EINVAL);
	SAME(ibv_advise_mr(other, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1), EPERM);
	sge.length = size;
	SAME(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1), EFAULT);
	sge = (struct ibv_sge){ (uintptr_t)pages, 4096, plain->lkey };
	SAME(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1), EINVAL);
	sge.lkey = readable->lkey;
	SAME(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1), 0);
	SAME(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, 0, &sge, 1), EPERM);
	sge.lkey = 0x12345678;
	SAME(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1), EFAULT);
	/* Pages that are not there any more. */
	sge = (struct ibv_sge){ (uintptr_t)pages + 8 * 4096, 4096, mr->lkey };
	SAME(munmap(pages + 8 * 4096, 4096), 0);
	SAME(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1), EFAULT);
	SAME(ibv_dereg_mr(plain), 0);
	SAME(ibv_dereg_mr(readable), 0);
	SAME(ibv_dereg_mr(mr), 0);
	SAME(ibv_dealloc_pd(other), 0);
	SAME(ibv_dealloc_pd(pd), 0);
	munmap(pages, size);
}

static void imports(struct ibv_context *context)
{
	struct ibv_context *import = ibv_import_device(dup(context->cmd_fd));
	struct end a = {}, b = {};
	struct ibv_pd *pd;
	struct ibv_mr *mr, *twice;

	CHECK(import);
	make_pair(&a, &b, context);
	pd = ibv_import_pd(import, b.pd->handle);
	CHECK(pd);
	mr = ibv_import_mr(pd, b.mr->handle);
	twice = ibv_import_mr(pd, b.mr->handle);
	CHECK(mr && twice && mr->context == import && mr->pd == pd && !mr->addr);
	SAME(mr->length, BUFFER);
	SAME(mr->lkey, b.mr->lkey);
	SAME(mr->rkey, b.mr->rkey);
	ibv_unimport_mr(twice);
	ibv_unimport_mr(b.mr);
	REFUSED(ibv_import_mr(pd, 0xffffff), ENOENT);
	REFUSED(ibv_import_mr(NULL, b.mr->handle), EINVAL);
	SAME(ibv_dealloc_pd(b.pd), EBUSY);
	SAME(write_to(&a, (uintptr_t)b.buffer, mr->rkey, "import"), IBV_WC_SUCCESS);
	/* Deregistering the import ends the registration. */
	SAME(ibv_dereg_mr(mr), 0);
	SAME(write_to(&a, (uintptr_t)b.buffer, b.mr->rkey, "gone"), IBV_WC_REM_ACCESS_ERR);
	free_queues(&a);
	free_queues(&b);
	SAME(ibv_dereg_mr(b.mr), 0);
	ibv_unimport_pd(pd);
	SAME(ibv_dealloc_pd(b.pd), 0);
	SAME(ibv_dereg_mr(a.mr), 0);
	SAME(ibv_dealloc_pd(a.pd), 0);
	free(a.buffer);
	free(b.buffer);
	SAME(ibv_close_device(import), 0);
}

static void what_is_not_there(struct ibv_context *context)
{
	struct ibv_ece ece = { .vendor_id = 7, .options = 8 };
	struct end a = {}, b = {};

	make_pair(&a, &b, context);
	REFUSED(ibv_reg_dmabuf_mr(a.pd, 0, 4096, 0, 0, 0), EOPNOTSUPP);
	SAME(ibv_set_ece(a.qp, &ece), EOPNOTSUPP);
	SAME(ibv_query_ece(a.qp, &ece), EOPNOTSUPP);
	SAME(ece.vendor_id, 0);
	SAME(ece.options, 0);
	SAME(ibv_query_ece(NULL, &ece), EINVAL);
	SAME(ibv_query_qp_data_in_order(a.qp, IBV_WR_RDMA_WRITE, 0), 1);
	SAME(ibv_query_qp_data_in_order(a.qp, IBV_WR_SEND, 0), 1);
	SAME(ibv_query_qp_data_in_order(a.qp, IBV_WR_RDMA_READ, 0), 0);
	SAME(ibv_query_qp_data_in_order(a.qp, IBV_WR_RDMA_WRITE, 1), 0);
	SAME(ibv_query_qp_data_in_order(NULL, IBV_WR_RDMA_WRITE, 0), 0);
	free_end(&a);
	free_end(&b);
}

int main(void)
{
	struct ibv_context *context = open_loopback();

	windows_of_type_1(context);
	windows_of_type_2(context);
	null_regions(context);
	regions_that_change(context);
	regions_of_device_memory(context);
	advice(context);
	imports(context);
	what_is_not_there(context);
	SAME(ibv_close_device(context), 0);
	printf("all as it should be\n");
	return 0;
}
