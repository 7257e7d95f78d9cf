#include "trireme/data/text_dataset.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>

#include "trireme/base/error.h"
#include "trireme/base/files.h"

namespace trireme::data {

EncodedText::EncodedText(const std::filesystem::path& path) {
  const std::string content = read_file(path);
  std::array<bool, 256> occurs{};
  for (const char character : content) occurs[static_cast<unsigned char>(character)] = true;
  std::array<std::uint8_t, 256> code_of{};
  for (std::size_t byte = 0; byte < occurs.size(); ++byte) {
    if (!occurs[byte]) continue;
    code_of[byte] = static_cast<std::uint8_t>(vocabulary_.size());
    vocabulary_ += static_cast<char>(byte);
  }
  codes_.resize(content.size());
  std::transform(content.begin(), content.end(), codes_.begin(),
                 [&](char character) { return code_of[static_cast<unsigned char>(character)]; });
}

TextDataset::TextDataset(std::shared_ptr<const EncodedText> text, const TextRange& range)
    : text_(std::move(text)),
      range_(range),
      size_((range.end - range.begin - range.block - 1) / range.stride + 1) {
  require(range.block >= 1 && range.stride >= 1, "a sample of text needs at least one character");
  require(range.end - range.begin > range.block, "a text of ", range.end - range.begin,
          " characters holds no sample of ", range.block, " characters and the one that follows");
}

void TextDataset::copy(std::int64_t index, std::int64_t* input, std::int64_t* target) const {
  require(index >= 0 && index < size_, "sample ", index, " of a text was asked for, it has ", size_);
  const std::uint8_t* codes = text_->codes() + range_.begin + index * range_.stride;
  std::copy(codes, codes + range_.block, input);
  std::copy(codes + 1, codes + 1 + range_.block, target);
}

Example TextDataset::get(std::int64_t index) const {
  Example example{at::empty({range_.block}, at::kLong), at::empty({range_.block}, at::kLong)};
  copy(index, example.input->data_ptr<std::int64_t>(), example.target->data_ptr<std::int64_t>());
  return example;
}

Example TextDataset::get_batch(std::span<const std::int64_t> indices) const {
  const auto count = static_cast<std::int64_t>(indices.size());
  Example batch{at::empty({count, range_.block}, at::kLong), at::empty({count, range_.block}, at::kLong)};
  auto* inputs = batch.input->data_ptr<std::int64_t>();
  auto* targets = batch.target->data_ptr<std::int64_t>();
  for (std::int64_t row = 0; row < count; ++row) {
    copy(indices[static_cast<std::size_t>(row)], inputs + row * range_.block, targets + row * range_.block);
  }
  return batch;
}

}  // namespace trireme::data
