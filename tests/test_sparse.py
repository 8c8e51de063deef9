# SPDX-License-Identifier: Apache-2.0
"""Sparse tensors: their parts lie on the device, products with dense ones run there, the rest on the CPU."""

import pytest
import torch

DENSE = torch.tensor([[0.0, 1, 0, 4], [2, 0, 3, 0], [0, 0, 0, 5]])
MATRIX = torch.arange(12.0).reshape(4, 3)
LAYOUTS = {
    "coo": lambda d: DENSE.to(d).to_sparse(),
    "csr": lambda d: DENSE.to(d).to_sparse_csr(),
    "csc": lambda d: DENSE.to_sparse_csc().to(d),
    "uncoalesced": lambda d: torch.sparse_coo_tensor(
        torch.tensor([[0, 1, 1, 1], [1, 0, 0, 3]], device=d), torch.tensor([1.0, 2, 3, 4], device=d), (3, 4)
    ),
    "empty": lambda d: torch.zeros(3, 4, device=d).to_sparse(),
}
pytestmark = pytest.mark.filterwarnings("ignore")


def dense(t):
    return (t.to_dense() if t.layout != torch.strided else t).detach().cpu()


@pytest.fixture(params=LAYOUTS)
def make(request):
    return LAYOUTS[request.param]


def test_products_and_dense_form_stay_on_the_device(make):
    sparse, host, before = make("tpu"), make("cpu"), torch.tpu.fallback_stats()
    x = MATRIX.to("tpu")
    assert sparse.is_tpu and sparse.layout == host.layout and sparse._nnz() == host._nnz()
    assert torch.equal(dense(sparse), dense(host))
    assert torch.equal((sparse @ x).cpu(), dense(host) @ MATRIX)
    assert torch.equal((sparse @ x[:, 0]).cpu(), dense(host) @ MATRIX[:, 0])
    assert torch.equal(torch.addmm(x[:3], sparse, x, beta=2).cpu(), 2 * MATRIX[:3] + dense(host) @ MATRIX)
    assert torch.tpu.fallback_stats() == before


def test_to_the_host_and_back(make):
    back = make("tpu").cpu()
    assert back.layout == make("cpu").layout and torch.equal(dense(back), dense(make("cpu")))
    assert torch.equal(dense(back.to("tpu")), dense(back))


def test_the_rest_is_counted():
    before = sum(torch.tpu.fallback_stats().values())
    coo = LAYOUTS["uncoalesced"]("tpu")
    assert coo.coalesce().values().tolist() == [1, 5, 4]
    assert torch.equal(dense(coo * 2 + coo), 3 * dense(coo))
    assert torch.equal(dense(coo @ coo.t()), dense(coo) @ dense(coo).t())
    assert torch.sparse.sum(coo).item() == 10
    assert sum(torch.tpu.fallback_stats().values()) > before


def test_gradients():
    def gradients(d):
        sparse, x = LAYOUTS["coo"](d).requires_grad_(), MATRIX.clone().to(d).detach().requires_grad_()
        torch.sparse.mm(sparse, x).square().sum().backward()
        return dense(sparse.grad), dense(x.grad)

    for got, want in zip(gradients("tpu"), gradients("cpu"), strict=True):
        torch.testing.assert_close(got, want)


def test_reduced_product_keeps_what_its_gradient_reads():
    def gradients(d):
        sparse, x = LAYOUTS["csr"]("cpu").to(d).requires_grad_(), MATRIX.clone().to(d).detach().requires_grad_()
        torch.sparse.mm(sparse, x, "amax").sum().backward()
        return dense(sparse.grad), dense(x.grad)

    for got, want in zip(gradients("tpu"), gradients("cpu"), strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.SparseAdam])
def test_embedding(optimizer):
    def trained(d):
        torch.manual_seed(0)
        table = torch.nn.Embedding(5, 3, sparse=True).to(d)
        steps = optimizer(table.parameters(), lr=0.1)
        for _ in range(3):
            steps.zero_grad()
            table(torch.tensor([1, 1, 2], device=d)).square().sum().backward()
            steps.step()
        return table.weight.detach().cpu()

    torch.testing.assert_close(trained("tpu"), trained("cpu"))
