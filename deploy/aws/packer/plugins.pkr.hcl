# Packer 1.7 and newer loads its builders as plugins. Packer 1.6, which Debian has, contains them and
# does not know this block, so it validates the other files without this one (tools/check_deploy.py).
packer {
  required_version = ">= 1.7"
  required_plugins {
    amazon = {
      source  = "github.com/hashicorp/amazon"
      version = ">= 1.3, < 2"
    }
  }
}
