# Runs a deploy script of acme.sh unchanged: sh acme_sh.sh PATH/NAME.sh calls NAME_deploy DOMAIN KEY CERT CA FULLCHAIN.
# The functions that it asks for are those of the acme.sh that it came with, one folder above it. What they would keep
# goes to a private folder that is removed afterwards, so that a script sees the variables of its program and no others.
script=$1
name=$(basename "$script" .sh)
above=$(dirname "$script")/../acme.sh
HOME=$HOLDFAST_PRIVATE
LE_WORKING_DIR=$HOME
LE_CONFIG_HOME=$HOME
DOMAIN_PATH=$HOME
DOMAIN_CONF=$HOME/domain.conf
ACCOUNT_CONF_PATH=$HOME/account.conf
Le_Domain=$HOLDFAST_NAME
export HOME LE_WORKING_DIR LE_CONFIG_HOME DOMAIN_PATH DOMAIN_CONF ACCOUNT_CONF_PATH Le_Domain
if [ ! -r "$above" ] || [ ! -r "$script" ]; then
  echo "there is no $script, or no acme.sh one folder above it"
  exit 77
fi
set --
. "$above" >/dev/null
. "$script"
"${name}_deploy" "$HOLDFAST_NAME" "$HOLDFAST_KEY" "$HOLDFAST_CERTIFICATE" "$HOLDFAST_CHAIN" "$HOLDFAST_FULLCHAIN"
