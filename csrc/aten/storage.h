// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/core/Storage.h>
#include <c10/util/ArrayRef.h>

#include "hlo/type.h"
#include "runtime/slot.h"

namespace tpu::aten {

// A storage of the device: its DataPtr owns a slot. The pointer is unique, never null, and lies in
// reserved memory that nothing can access.
c10::Storage make_storage(size_t nbytes, int device, const hlo::Type* type);
c10::Storage make_storage(int device, runtime::ValueRef value);

// The slot behind a storage of the device; throws for a storage that isn't ours.
runtime::Slot& slot_of(const c10::StorageImpl& storage);

// Grows or shrinks, keeping the common prefix of bytes.
void resize_storage(const c10::Storage& storage, size_t nbytes);

c10::Allocator* allocator();

// The sizes of a dense tensor in the order in which its storage holds the dimensions.
hlo::Dims physical_dims(c10::IntArrayRef sizes, c10::IntArrayRef strides);

// Throws c10::Error for dtypes that StableHLO has no type for.
hlo::DType dtype_of(c10::ScalarType type);
c10::ScalarType scalar_type_of(hlo::DType type);

}  // namespace tpu::aten
