// SPDX-License-Identifier: Apache-2.0
// Bits of integers, logic of bools.
#include "lowering/pointwise.h"

namespace tpu::lowering {
namespace {

template <Value (*f)(Arg, Arg)>
Value bits(Value x, Value y) {
  return f(x, y);
}

}  // namespace

// Shifts by less than 0 or by the width and more give 0 or the sign, in XLA as in PyTorch.
TPU_LOWER_BINARY({
    {{"bitwise_and.Tensor"}, Rule::Raw, bits<operator&>, {"bitwise_and_cpu", no_bits}},
    {{"bitwise_or.Tensor"}, Rule::Raw, bits<operator| >, {"bitwise_or_cpu", no_bits}},
    {{"bitwise_xor.Tensor"}, Rule::Raw, bits<operator^ >, {"bitwise_xor_cpu", no_bits}},
    {{"bitwise_left_shift.Tensor", "__lshift__.Tensor", "__lshift__.Scalar"},
     Rule::Raw,
     bits<operator<< >,
     {"lshift_cpu", no_bits}},
    {{"bitwise_right_shift.Tensor", "__rshift__.Tensor", "__rshift__.Scalar"},
     Rule::Raw,
     bits<operator>> >,
     {"rshift_cpu", no_bits}},
});

TPU_LOWER_UNARY({{"bitwise_not", Rule::Raw, [](Value x) { return ~x; }, {"bitwise_not_cpu", no_bits}}});

}  // namespace tpu::lowering
