// SPDX-License-Identifier: Apache-2.0
#include "lowering/promote.h"

// What torch.amp.GradScaler calls; no value comes to the host.
namespace tpu::lowering {
namespace {

// Gradients times inv_scale; found_inf becomes 1 if any is not finite.
TPU_LOWER("_amp_foreach_non_finite_check_and_unscale_", [](Values grads, Value found_inf, Value inv_scale) {
  Values out;
  Value found = scalar(graph(), PRED, false);
  for (Value g : grads) {
    Value x = accumulate(g);
    found = found | !all(is_finite(x), all_dims(x));
    out.push_back(convert(x * convert(reshape(inv_scale, {}), x.dtype()), g.dtype()));
  }
  out.push_back(where(found, 1, found_inf));
  return out;
});

// Overflow: scale * backoff, tracker 0. Else, after growth_interval good steps: scale * growth if finite.
TPU_LOWER("_amp_update_scale_",
          [](Value scale, Value tracker, Value found_inf, Value growth, Value backoff, Value interval) {
            const auto number = [&](Value v) { return convert(v, scale.dtype()); };
            Value overflow = reshape(gt(found_inf, 0), scale.dims());
            Value successful = tracker + 1;
            Value grow = eq(successful, convert(interval, tracker.dtype()));
            Value grown = scale * number(growth);
            Value scale_grows = reshape(grow, scale.dims()) & is_finite(grown);
            Value new_scale = where(overflow, scale * number(backoff), where(scale_grows, grown, scale));
            return std::tuple(new_scale, where(reshape(overflow, tracker.dims()) | grow, 0, successful));
          });

}  // namespace
}  // namespace tpu::lowering
