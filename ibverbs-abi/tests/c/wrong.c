/* Calls with pointers that are NULL, or no objects: each is refused as its man page says, and nothing
 * is touched. Only functions of the library: those of verbs.h follow such pointers by themselves. */
#include "check.h"

#undef ibv_reg_mr
#undef ibv_reg_mr_iova
#undef ibv_query_port

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access);
int ibv_query_port(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *attr);

static void devices(struct ibv_device *device)
{
	REFUSED(ibv_open_device(device), EINVAL);
	CHECK(!ibv_get_device_name(device));
	SAME(ibv_get_device_guid(device), 0);
	MINUS_ONE(ibv_get_device_index(device), EINVAL);
	ibv_free_device_list((struct ibv_device **)device);
}

static void contexts(struct ibv_context *context)
{
	struct ibv_async_event event = {};
	struct ibv_device_attr attr;
	struct ibv_gid_entry entry;
	union ibv_gid gid;
	__be16 pkey;

	SAME(ibv_query_device(context, &attr), EINVAL);
	SAME(ibv_query_port(context, 1, NULL), EINVAL);
	MINUS_ONE(ibv_query_gid(context, 1, 0, &gid), EINVAL);
	MINUS_ONE(ibv_query_pkey(context, 1, 0, &pkey), EINVAL);
	MINUS_ONE(ibv_get_pkey_index(context, 1, 0), EINVAL);
	SAME(ibv_query_gid_ex(context, 1, 0, &entry, 0), EINVAL);
	SAME(ibv_query_gid_table(context, &entry, 1, 0), -EINVAL);
	REFUSED(ibv_alloc_pd(context), EINVAL);
	REFUSED(ibv_create_comp_channel(context), EINVAL);
	REFUSED(ibv_create_cq(context, 1, NULL, NULL, 0), EINVAL);
	REFUSED(ibv_import_pd(context, 1), EINVAL);
	REFUSED(ibv_import_dm(context, 1), EINVAL);
	MINUS_ONE(ibv_get_async_event(context, &event), EINVAL);
	MINUS_ONE(ibv_close_device(context), EINVAL);
}

static void domains(struct ibv_pd *pd)
{
	struct ibv_srq_init_attr srq = { .attr = { 1, 1, 0 } };
	struct ibv_qp_init_attr qp = { .qp_type = IBV_QPT_RC };
	struct ibv_ah_attr ah = { .is_global = 1, .port_num = 1 };
	char memory[64];

	REFUSED(ibv_reg_mr(pd, memory, sizeof(memory), 0), EINVAL);
	REFUSED(ibv_reg_mr_iova2(pd, memory, sizeof(memory), 0, 0), EINVAL);
	REFUSED(ibv_create_srq(pd, &srq), EINVAL);
	REFUSED(ibv_create_srq(pd, NULL), EINVAL);
	REFUSED(ibv_create_qp(pd, &qp), EINVAL);
	REFUSED(ibv_create_qp(pd, NULL), EINVAL);
	REFUSED(ibv_create_ah(pd, &ah), EINVAL);
	REFUSED(ibv_create_ah(pd, NULL), EINVAL);
	REFUSED(ibv_create_ah_from_wc(pd, NULL, NULL, 1), EINVAL);
	REFUSED(ibv_import_mr(pd, 1), EINVAL);
	ibv_unimport_pd(pd);
	SAME(ibv_dealloc_pd(pd), EINVAL);
}

static void others(void *nothing)
{
	struct ibv_qp_init_attr init;
	struct ibv_srq_attr srq_attr = {};
	struct ibv_qp_attr qp_attr = {};
	union ibv_gid gid = {};
	struct ibv_ece ece;
	struct ibv_cq *cq;
	void *word;

	MINUS_ONE(ibv_rereg_mr(nothing, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0), EINVAL);
	ibv_unimport_mr(nothing);
	SAME(ibv_dereg_mr(nothing), EINVAL);
	ibv_unimport_dm(nothing);
	MINUS_ONE(ibv_get_cq_event(nothing, &cq, &word), EINVAL);
	SAME(ibv_destroy_comp_channel(nothing), EINVAL);
	SAME(ibv_resize_cq(nothing, 10), EINVAL);
	SAME(ibv_destroy_cq(nothing), EINVAL);
	SAME(ibv_modify_srq(nothing, &srq_attr, IBV_SRQ_LIMIT), EINVAL);
	SAME(ibv_query_srq(nothing, &srq_attr), EINVAL);
	SAME(ibv_destroy_srq(nothing), EINVAL);
	SAME(ibv_modify_qp(nothing, &qp_attr, IBV_QP_STATE), EINVAL);
	SAME(ibv_query_qp(nothing, &qp_attr, IBV_QP_STATE, &init), EINVAL);
	SAME(ibv_attach_mcast(nothing, &gid, 0), EINVAL);
	SAME(ibv_detach_mcast(nothing, &gid, 0), EINVAL);
	SAME(ibv_query_ece(nothing, &ece), EINVAL);
	SAME(ibv_set_ece(nothing, &ece), EINVAL);
	CHECK(!ibv_qp_to_qp_ex(nothing));
	SAME(ibv_destroy_qp(nothing), EINVAL);
	SAME(ibv_destroy_ah(nothing), EINVAL);
}

/* Objects are there, but what is asked of them is NULL. */
static void results(void)
{
	struct ibv_context *context = open_loopback();
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 1, NULL, NULL, 0);
	struct ibv_srq_init_attr srq_init = { .attr = { 1, 1, 0 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &srq_init);
	struct ibv_qp_init_attr qp_init = {
		.qp_type = IBV_QPT_RC,
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1 },
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &qp_init);

	CHECK(pd && cq && srq && qp);
	SAME(ibv_query_device(context, NULL), EINVAL);
	SAME(ibv_query_device_ex(context, NULL, NULL), EINVAL);
	MINUS_ONE(ibv_query_gid(context, 1, 0, NULL), EINVAL);
	MINUS_ONE(ibv_query_pkey(context, 1, 0, NULL), EINVAL);
	SAME(ibv_query_gid_ex(context, 1, 0, NULL, 0), EINVAL);
	SAME(ibv_query_srq(srq, NULL), EINVAL);
	SAME(ibv_modify_srq(srq, NULL, IBV_SRQ_LIMIT), EINVAL);
	SAME(ibv_modify_qp(qp, NULL, IBV_QP_STATE), EINVAL);
	SAME(ibv_query_qp(qp, NULL, 0, NULL), EINVAL);
	SAME(ibv_query_rt_values_ex(context, NULL), EINVAL);
	SAME(ibv_modify_cq(cq, NULL), EINVAL);
	SAME(ibv_attach_mcast(qp, NULL, 0), EINVAL);
	REFUSED(ibv_alloc_td(context, NULL), EINVAL);
	REFUSED(ibv_alloc_parent_domain(context, NULL), EINVAL);
	REFUSED(ibv_open_xrcd(context, NULL), EINVAL);
	REFUSED(ibv_open_qp(context, NULL), EINVAL);
	REFUSED(ibv_alloc_dm(context, NULL), EINVAL);
	SAME(ibv_destroy_qp(qp), 0);
	SAME(ibv_destroy_srq(srq), 0);
	SAME(ibv_destroy_cq(cq), 0);
	SAME(ibv_dealloc_pd(pd), 0);
	/* What is not destroyed goes with the context. */
	CHECK(ibv_alloc_pd(context) && ibv_create_cq(context, 1, NULL, NULL, 0));
	SAME(ibv_close_device(context), 0);
}

int main(void)
{
	devices(NULL);
	devices(NOTHING(struct ibv_device));
	contexts(NULL);
	contexts(NOTHING(struct ibv_context));
	domains(NULL);
	domains(NOTHING(struct ibv_pd));
	others(NULL);
	others(NOTHING(char));
	ibv_ack_async_event(NULL);
	ibv_ack_cq_events(NULL, 1);
	results();
	printf("all as it should be\n");
	return 0;
}
