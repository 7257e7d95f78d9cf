// A whole safetensors file: header length, header and data. Also reads the tensors whose boxes the metadata
// names.
#include <ATen/ops/empty.h>

#include <cstring>

#include "tests/fuzz/reading.h"
#include "trireme/checkpoint/internal/boxes_in_file.h"
#include "trireme/checkpoint/internal/safetensors_header.h"
#include "trireme/checkpoint/safetensors.h"
#include "trireme/checkpoint/shard_reader.h"

using namespace trireme;

extern "C" int fuzz_safetensors(const std::uint8_t* data, std::size_t size) {
  static const fuzz::Folder folder;
  const auto file = folder.put("model.safetensors", fuzz::text_in(data, size));
  const bool laid_out = fuzz::is_read([&] {
    const auto layout = checkpoint::layout_of_safetensors(file);
    fuzz::is_read([&] { checkpoint::stored_boxes(layout.header, "input"); });
  });
  fuzz::is_read([&] {
    auto reader = checkpoint::ShardReader::of_files({file});
    for (const auto& [name, stored] : reader.tensors()) {
      const auto box = checkpoint::whole_box(stored.sizes);
      if (box.numel() <= static_cast<std::int64_t>(size))
        reader.read(name, box, at::empty(stored.sizes, at::TensorOptions(stored.type)));
    }
  });
  const bool loaded = fuzz::is_read([&] {
    const checkpoint::SafetensorsFile read = checkpoint::load_safetensors(file);
    const auto copy = file.parent_path() / "copy.safetensors";
    checkpoint::save_safetensors(copy, read.tensors, read.metadata);
    if (checkpoint::xxh3_of(checkpoint::load_safetensors(copy).tensors) != checkpoint::xxh3_of(read.tensors))
      __builtin_trap();
  });
  if (loaded && !laid_out) __builtin_trap();
  return 0;
}
