#include "api/mirrors.h"

#include <sys/stat.h>

#include <filesystem>

#include "base/status.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

// A file given instead of its folder: taken where it is what would be read in there.
Expected<fs::path> folder_of_copy(const Model::Impl& model, const std::string& given,
                                  const fs::path& own) {
  if (model.packed || model.source().files.size() != 1)
    return fail(Code::kInvalid,
                "mirror '{}' is a file, and the model has several; give the folder that holds them",
                given);
  if (fs::path(given).filename() != own.filename())
    return fail(Code::kInvalid, "mirror '{}' does not have the name of the model's file, '{}'",
                given, own.filename().string());
  std::error_code error;
  return fs::absolute(given, error).parent_path();
}

bool same_device(const fs::path& a, const fs::path& b) {
  struct stat first {
  }, second{};
  return ::stat(a.c_str(), &first) == 0 && ::stat(b.c_str(), &second) == 0 &&
         first.st_dev == second.st_dev;
}

}  // namespace

Expected<std::vector<std::string>> mirror_folders(const Model::Impl& model,
                                                  const EngineOptions& options) {
  const fs::path own = model.packed ? model.packed->files[0] : model.source().files[0].path;
  std::vector<std::string> folders;
  for (const std::string& given : options.mirrors) {
    std::error_code error;
    fs::path folder = given;
    if (fs::is_regular_file(folder, error)) {
      MILLRACE_ASSIGN(folder, folder_of_copy(model, given, own));
    } else if (!fs::is_directory(folder, error)) {
      return fail(Code::kNotFound, "mirror '{}': no such folder", given);
    }
    if (fs::equivalent(folder, own.parent_path(), error))
      return fail(Code::kInvalid, "mirror '{}' is the model's own folder", given);
    if (options.warn && same_device(folder, own.parent_path()))
      options.warn(fmt::format(
          "mirror '{}' lies on the same disk as the model: it makes nothing faster", given));
    folders.push_back(fs::absolute(folder, error).lexically_normal().string());
  }
  return folders;
}

Status check_reading(const Model::Impl& model, const EngineOptions& options) {
  if (!options.verify_reads || model.packed) return {};
  return fail(Code::kUnsupported,
              "{}: source files carry no hashes to verify reads with; pack the model first",
              model.info.path);
}

}  // namespace millrace
