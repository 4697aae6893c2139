/* Protection, thread and parent domains, XRC domains, device memory, and all that can be imported. */
#include <fcntl.h>
#include <unistd.h>

#include "check.h"

static void protection_domains(struct ibv_context *context)
{
	struct ibv_pd *pd = ibv_alloc_pd(context);

	CHECK(pd);
	CHECK(pd->context == context);
	SAME(ibv_dealloc_pd(pd), 0);
	SAME(ibv_dealloc_pd(pd), EINVAL);
	SAME(ibv_dealloc_pd(NULL), EINVAL);
	REFUSED(ibv_alloc_pd(NULL), EINVAL);
}

static void parent_domains(struct ibv_context *context, struct ibv_context *other)
{
	struct ibv_td_init_attr td_attr = {};
	struct ibv_parent_domain_init_attr attr = {};
	struct ibv_pd *pd = ibv_alloc_pd(context), *parent;
	struct ibv_td *td = ibv_alloc_td(context, &td_attr);

	CHECK(pd && td);
	td_attr.comp_mask = 1;
	REFUSED(ibv_alloc_td(context, &td_attr), EINVAL);

	attr.pd = pd;
	attr.td = td;
	attr.comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
	parent = ibv_alloc_parent_domain(context, &attr);
	CHECK(parent && parent != pd);
	SAME(parent->handle, pd->handle);
	SAME(ibv_dealloc_td(td), EBUSY);
	SAME(ibv_dealloc_pd(pd), EBUSY);

	/* Allocators, but none are given: see allocators.c. */
	attr.comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS;
	REFUSED(ibv_alloc_parent_domain(context, &attr), EINVAL);
	attr.comp_mask = 1 << 7;
	REFUSED(ibv_alloc_parent_domain(context, &attr), EINVAL);
	attr.comp_mask = 0;
	attr.pd = NULL;
	REFUSED(ibv_alloc_parent_domain(context, &attr), EINVAL);
	attr.pd = pd;
	attr.td = NOTHING(struct ibv_td);
	REFUSED(ibv_alloc_parent_domain(context, &attr), EINVAL);
	attr.td = NULL;
	REFUSED(ibv_alloc_parent_domain(other, &attr), EINVAL);

	SAME(ibv_dealloc_pd(parent), 0);
	SAME(ibv_dealloc_td(td), 0);
	SAME(ibv_dealloc_pd(pd), 0);
}

static struct ibv_xrcd *open_xrcd(struct ibv_context *context, int fd, int oflags)
{
	struct ibv_xrcd_init_attr attr = {
		.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
		.fd = fd,
		.oflags = oflags,
	};

	return ibv_open_xrcd(context, &attr);
}

static void xrc_domains(struct ibv_context *context)
{
	struct ibv_xrcd_init_attr attr = { .comp_mask = 0, .fd = -1 };
	struct ibv_xrcd *alone, *first, *second;
	char name[] = "/tmp/urxe-xrcd-XXXXXX";
	int fd = mkstemp(name), same;

	CHECK(fd >= 0);
	same = open(name, O_RDONLY);
	CHECK(same >= 0);
	unlink(name);

	alone = open_xrcd(context, -1, O_CREAT);
	CHECK(alone);
	SAME(ibv_close_xrcd(alone), 0);

	REFUSED(open_xrcd(context, fd, 0), EAGAIN);
	first = open_xrcd(context, fd, O_CREAT | O_EXCL);
	CHECK(first);
	REFUSED(open_xrcd(context, same, O_CREAT | O_EXCL), EINVAL);
	second = open_xrcd(context, same, 0);
	CHECK(second && second != first);
	SAME(ibv_close_xrcd(first), 0);
	/* Still there: the second one is a handle of it. */
	first = open_xrcd(context, fd, 0);
	CHECK(first);
	SAME(ibv_close_xrcd(second), 0);
	SAME(ibv_close_xrcd(first), 0);
	REFUSED(open_xrcd(context, fd, 0), EAGAIN);

	close(same);
	close(fd);
	REFUSED(open_xrcd(context, fd, O_CREAT), EBADF);
	REFUSED(ibv_open_xrcd(context, &attr), EINVAL);
}

static void device_memory(struct ibv_context *context)
{
	struct ibv_alloc_dm_attr attr = { .length = 4096, .log_align_req = 12 };
	struct ibv_device_attr_ex device;
	char in[64], out[64];
	struct ibv_dm *dm;
	unsigned int i;

	SAME(ibv_query_device_ex(context, NULL, &device), 0);
	CHECK(device.max_dm_size > attr.length);
	dm = ibv_alloc_dm(context, &attr);
	CHECK(dm);
	memset(out, 1, sizeof(out));
	SAME(ibv_memcpy_from_dm(out, dm, 4032, sizeof(out)), 0);
	for (i = 0; i < sizeof(out); i++) {
		SAME(out[i], 0);
		in[i] = 'a' + i % 26;
	}
	SAME(ibv_memcpy_to_dm(dm, 17, in, sizeof(in)), EFAULT);
	SAME(ibv_memcpy_to_dm(dm, 20, in, sizeof(in)), 0);
	SAME(ibv_memcpy_from_dm(out, dm, 20, sizeof(out)), 0);
	CHECK(!memcmp(in, out, sizeof(in)));
	SAME(ibv_memcpy_to_dm(dm, 4090, in, sizeof(in)), EFAULT);
	SAME(ibv_memcpy_to_dm(dm, UINT64_MAX, in, sizeof(in)), EFAULT);
	SAME(ibv_memcpy_to_dm(dm, 0, in, SIZE_MAX), EFAULT);
	SAME(ibv_memcpy_to_dm(dm, 0, NULL, 1), EFAULT);
	SAME(ibv_memcpy_from_dm(out, dm, 4090, sizeof(out)), EFAULT);
	SAME(ibv_memcpy_from_dm(NULL, dm, 0, 1), EFAULT);
	SAME(ibv_memcpy_from_dm(NULL, dm, 0, 0), 0);
	SAME(ibv_free_dm(dm), 0);

	attr.length = 0;
	REFUSED(ibv_alloc_dm(context, &attr), EINVAL);
	attr.length = device.max_dm_size + 1;
	REFUSED(ibv_alloc_dm(context, &attr), ENOMEM);
	attr.length = device.max_dm_size;
	attr.log_align_req = 40;
	REFUSED(ibv_alloc_dm(context, &attr), EINVAL);
	attr.log_align_req = 0;
	dm = ibv_alloc_dm(context, &attr);
	CHECK(dm);
	attr.length = 1;
	REFUSED(ibv_alloc_dm(context, &attr), ENOMEM);
	SAME(ibv_free_dm(dm), 0);
	attr.comp_mask = 1;
	REFUSED(ibv_alloc_dm(context, &attr), EINVAL);
}

static void imports(struct ibv_context *context)
{
	struct ibv_alloc_dm_attr dm_attr = { .length = 64 };
	struct ibv_context *import = ibv_import_device(dup(context->cmd_fd));
	struct ibv_pd *pd = ibv_alloc_pd(context), *pd_import, *twice;
	struct ibv_dm *dm = ibv_alloc_dm(context, &dm_attr), *dm_import;
	char word[4] = "xyz";

	CHECK(import && pd && dm);
	CHECK(import != context && import->device == context->device);
	pd_import = ibv_import_pd(import, pd->handle);
	twice = ibv_import_pd(import, pd->handle);
	CHECK(pd_import && pd_import->context == import && twice && twice != pd_import);
	SAME(pd_import->handle, pd->handle);
	ibv_unimport_pd(twice);
	REFUSED(ibv_import_pd(import, pd->handle + 1000), ENOENT);
	REFUSED(ibv_import_pd(NULL, pd->handle), EINVAL);
	/* Only imports can be let go of. */
	ibv_unimport_pd(pd);
	ibv_unimport_pd(NULL);

	dm_import = ibv_import_dm(import, dm->handle);
	CHECK(dm_import);
	SAME(ibv_memcpy_to_dm(dm, 4, word, sizeof(word)), 0);
	word[0] = 0;
	SAME(ibv_memcpy_from_dm(word, dm_import, 4, sizeof(word)), 0);
	SAME(word[0], 'x');
	REFUSED(ibv_import_dm(import, dm->handle + 1000), ENOENT);
	ibv_unimport_dm(dm);
	ibv_unimport_dm(dm_import);

	ibv_unimport_pd(pd_import);
	SAME(ibv_dealloc_pd(pd), 0);
	SAME(ibv_free_dm(dm), 0);
	SAME(ibv_close_device(import), 0);

	MINUS_ONE(ibv_close_device(import), EINVAL);
	REFUSED(ibv_import_device(-1), EINVAL);
	REFUSED(ibv_import_device(context->cmd_fd), EINVAL);
	REFUSED(ibv_import_device(0), ENODEV);
}

static void clock_of_the_device(struct ibv_context *context)
{
	struct ibv_values_ex first = { .comp_mask = IBV_VALUES_MASK_RAW_CLOCK }, second = first;

	SAME(ibv_query_rt_values_ex(context, &first), 0);
	SAME(first.comp_mask, IBV_VALUES_MASK_RAW_CLOCK);
	usleep(1000);
	SAME(ibv_query_rt_values_ex(context, &second), 0);
	SAME(first.raw_clock.tv_sec, 0);
	CHECK(second.raw_clock.tv_nsec - first.raw_clock.tv_nsec >= 1000000);
	first.comp_mask = 1 << 5;
	SAME(ibv_query_rt_values_ex(context, &first), EINVAL);
}

int main(void)
{
	struct ibv_context *context = open_loopback(), *other = open_loopback();

	protection_domains(context);
	parent_domains(context, other);
	xrc_domains(context);
	device_memory(context);
	imports(context);
	clock_of_the_device(context);
	SAME(ibv_close_device(other), 0);
	SAME(ibv_close_device(context), 0);
	printf("all as it should be\n");
	return 0;
}
