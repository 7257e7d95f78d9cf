#pragma once
// Element-wise reduction of several buffers, in the order given, into one or more buffers. The bits of the
// result depend on the inputs and their order only: not on the instruction set, not on how a buffer is cut.
// bf16 and f16 are added up in f32 over all sources and rounded once, to nearest even. Averages divide the
// sum by the number of sources; integers truncate. Minimum and maximum propagate NaN. Pure; thread-safe.

#include <cstddef>
#include <span>

#include "trireme/wire/element.h"

namespace trireme::wire {

/// targets[t][i] = sources[0][i] op sources[1][i] op ... for i < count. A target may be one of the sources,
/// but not overlap one in another way. Throws InvalidArgument for an element type that cannot be reduced.
void reduce(Element element, Reduction reduction, std::span<const std::byte* const> sources,
            std::span<std::byte* const> targets, std::size_t count);

}  // namespace trireme::wire
